/* A plugin as small as can be: reads its request, prints an answer. */
#include <unistd.h>

int main(void) {
    char buffer[4096];
    while (read(0, buffer, sizeof buffer) > 0) {}
    static const char answer[] = "{\"status\": \"ok\", \"result\": \"done\"}";
    return write(1, answer, sizeof answer - 1) < 0;
}
