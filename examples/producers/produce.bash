#!/usr/bin/env bash
# Publishes one job, with bash alone: the protocol of NATS is text.
#
#     NATS_URL=nats://127.0.0.1:4222 bash produce.bash texts word_count '"one two"' text-7
#
# Prints the sequence that the stream assigned. With the same key, a second run publishes the same job.
# Supports one server, no TLS, and a user and password of letters and digits; use a client for more.
set -euo pipefail
# Lengths in bytes, not in characters.
export LC_ALL=C
[[ $# = 4 && $4 != *[[:cntrl:]]* ]] || { echo "usage: produce.bash QUEUE KIND JSON KEY" >&2; exit 2; }
subject=${TENURE_SUBJECT_PREFIX:-jobs}.$1.$2
[[ $NATS_URL =~ ^nats://(([A-Za-z0-9_-]+):([A-Za-z0-9_-]+)@)?([^:/,@]+)(:([0-9]+))?/?$ ]] ||
    { echo "NATS_URL must be nats://[user:password@]host[:port]" >&2; exit 2; }
user=${BASH_REMATCH[2]} password=${BASH_REMATCH[3]} host=${BASH_REMATCH[4]} port=${BASH_REMATCH[6]:-4222}
options='"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"lang":"bash","version":"1"'
[[ -z $user ]] || options+=",\"user\":\"$user\",\"pass\":\"$password\""

# ANCHOR: publish
# Opens one connection, sends one message with headers and an inbox, and reads the first answer in that inbox.
# The stream compares Nats-Msg-Id across all queues; the subject in it limits it to this queue.
publish() {
    local inbox=${TENURE_NATS_INBOX_PREFIX:-_INBOX}.$RANDOM$RANDOM$RANDOM line answer sequence
    local headers=$'NATS/1.0\r\nTenure-Idempotency-Key: '$2$'\r\nNats-Msg-Id: '$subject:$2$'\r\n\r\n'
    exec 3<>"/dev/tcp/$host/$port" || return 1
    printf 'CONNECT {%s}\r\nSUB %s 1\r\nHPUB %s %s %d %d\r\n%s%s\r\n' \
        "$options" "$inbox" "$subject" "$inbox" ${#headers} $((${#headers} + ${#1})) "$headers" "$1" >&3
    while IFS= read -r -t 5 line <&3; do
        case $line in
            PING*) printf 'PONG\r\n' >&3 ;;
            HMSG*) echo "no stream takes $subject" >&2; return 1 ;;
            -ERR*) echo "${line%$'\r'}" >&2; return 1 ;;
            MSG*)
                IFS= read -r -t 5 answer <&3
                [[ $answer != *'"error"'* && $answer =~ \"seq\":([0-9]+) ]] || { echo "$answer" >&2; return 1; }
                sequence=${BASH_REMATCH[1]}
                [[ $answer != *'"duplicate"'* ]] || sequence+=' (accepted before)'
                echo "$sequence"
                return 0 ;;
        esac
    done
    return 1    # no answer: the message may or may not be accepted
}
# ANCHOR_END: publish

for pause in 1 2 4 8 0; do
    publish "$3" "$4" && exit 0
    echo "no answer, or a refusal; retrying with the same key" >&2
    sleep "$pause"
done
echo "it is unknown whether the stream accepted the job; run this again with the same key" >&2
exit 1
