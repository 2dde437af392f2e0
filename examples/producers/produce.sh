#!/bin/sh
# Publishes one job, with nothing but the command line of NATS (github.com/nats-io/natscli):
#
#     NATS_URL=nats://127.0.0.1:4222 sh produce.sh texts word_count '"one two"' text-7
#
# Prints the sequence that the stream gave it. Run again with the same key, it is the same job.
# `nats` replaces {{...}} in a body; a payload that may hold that needs another client.
set -eu
[ $# = 4 ] || { echo "usage: produce.sh QUEUE KIND JSON KEY" >&2; exit 2; }
subject=${TENURE_SUBJECT_PREFIX:-jobs}.$1.$2

# ANCHOR: publish
# A request, since `nats pub` waits for no answer. Exit 0 says nothing: only the answer does.
# The stream compares its own id across all queues: the subject makes it one of this queue.
publish() {
    answer=$(nats request --raw --timeout 5s --inbox-prefix "${TENURE_NATS_INBOX_PREFIX:-_INBOX}" \
        --header "Tenure-Idempotency-Key:$2" --header "Nats-Msg-Id:$subject:$2" "$subject" "$1") || return 1
    case $answer in
        *'"error"'*) echo "$answer" >&2; return 1 ;;    # refused: a full stream, no leader
        *'"seq":'*) ;;
        *) return 1 ;;                                  # no answer: it may have been accepted, or not
    esac
    sequence=${answer#*'"seq":'}
    case $answer in *'"duplicate"'*) before=' (accepted before)' ;; *) before= ;; esac
    echo "${sequence%%[!0-9]*}$before"
}
# ANCHOR_END: publish

for pause in 1 2 4 8 0; do
    publish "$3" "$4" && exit 0
    echo "no answer, or a refusal; tried again with the same key" >&2
    sleep "$pause"
done
echo "not known whether it was accepted; run this again with the same key" >&2
exit 1
