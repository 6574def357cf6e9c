/* The bare machine: start a program so many times, so many at once, write REQUEST to its stdin, read its
 * stdout and stderr to their end, reap it. Nothing is kept, decided or made durable. Prints jobs per second.
 *
 *   spawn_loop PROGRAM JOBS AT_ONCE REQUEST
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

struct job { pid_t pid; int out, err; };

static const char *request;
static size_t request_size;

static void check(int failed, const char *what) {
    if (failed) { perror(what); exit(1); }
}

static void start(struct job *job, const char *program) {
    int in[2], out[2], err[2];
    check(pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC), "pipe");
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    posix_spawn_file_actions_adddup2(&actions, err[1], 2);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
    char *argv[] = {(char *)program, NULL};
    errno = posix_spawn(&job->pid, program, &actions, &attributes, argv, environ);
    check(errno != 0, program);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    close(in[0]); close(out[1]); close(err[1]);
    if (write(in[1], request, request_size) < 0) check(errno != EPIPE, "write");
    close(in[1]);
    job->out = out[0];
    job->err = err[0];
}

static void drain(int *fd) {
    char buffer[65536];
    ssize_t got = read(*fd, buffer, sizeof buffer);
    if (got == 0 || (got < 0 && errno != EAGAIN)) { close(*fd); *fd = -1; }
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    int jobs = atoi(argv[2]), at_once = atoi(argv[3]), started = 0, done = 0;
    struct job *running = calloc(at_once, sizeof *running);
    struct pollfd *polled = calloc(2 * at_once, sizeof *polled);
    request = argv[4];
    request_size = strlen(request);
    signal(SIGPIPE, SIG_IGN);
    struct timespec began, ended;
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (int slot = 0; slot < at_once; slot++) running[slot].pid = 0;
    while (done < jobs) {
        for (int slot = 0; slot < at_once; slot++) {
            if (running[slot].pid == 0 && started < jobs) { start(&running[slot], argv[1]); started++; }
            polled[2 * slot] = (struct pollfd){running[slot].pid ? running[slot].out : -1, POLLIN, 0};
            polled[2 * slot + 1] = (struct pollfd){running[slot].pid ? running[slot].err : -1, POLLIN, 0};
        }
        check(poll(polled, 2 * at_once, -1) < 0, "poll");
        for (int slot = 0; slot < at_once; slot++) {
            struct job *job = &running[slot];
            if (job->pid == 0) continue;
            if (job->out >= 0 && polled[2 * slot].revents) drain(&job->out);
            if (job->err >= 0 && polled[2 * slot + 1].revents) drain(&job->err);
            if (job->out < 0 && job->err < 0) {
                waitpid(job->pid, NULL, 0);
                job->pid = 0;
                done++;
            }
        }
    }
    clock_gettime(CLOCK_MONOTONIC, &ended);
    printf("%f\n", jobs / ((ended.tv_sec - began.tv_sec) + (ended.tv_nsec - began.tv_nsec) / 1e9));
    return 0;
}
