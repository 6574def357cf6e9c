#!/bin/sh
# Adds what the analyzer says to messages.txt. A job may run twice, so a message that is there stays as it is.
set -eu
cd "$(dirname "$0")"
touch messages.txt
if grep -qxF -- "id: $PAYLOAD_ID" messages.txt; then
    echo "told before: $PAYLOAD_TITLE"
    exit
fi
printf '%s\n\n%s\n\nid: %s\n----\n' "$PAYLOAD_TITLE" "$PAYLOAD_TEXT" "$PAYLOAD_ID" >> messages.txt
echo "told: $PAYLOAD_TITLE"
