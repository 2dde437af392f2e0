#!/bin/sh
# Publishes one job, with only the NATS command line (github.com/nats-io/natscli):
#
#     NATS_URL=nats://127.0.0.1:4222 sh produce.sh texts word_count '"one two"' text-7
#
# Prints the sequence that the stream assigned. With the same key, a second run publishes the same job.
# `nats` replaces {{...}} in a body; use another client for a payload that may contain that.
set -eu
[ $# = 4 ] || { echo "usage: produce.sh QUEUE KIND JSON KEY" >&2; exit 2; }
subject=${TENURE_SUBJECT_PREFIX:-jobs}.$1.$2

# ANCHOR: publish
# A request, since `nats pub` does not wait for an answer. Only the answer counts, not exit code 0.
# The stream compares Nats-Msg-Id across all queues; the subject in it limits it to this queue.
publish() {
    answer=$(nats request --raw --timeout 5s --inbox-prefix "${TENURE_NATS_INBOX_PREFIX:-_INBOX}" \
        --header "Tenure-Idempotency-Key:$2" --header "Nats-Msg-Id:$subject:$2" "$subject" "$1") || return 1
    case $answer in
        *'"error"'*) echo "$answer" >&2; return 1 ;;    # refused: a full stream, no leader
        *'"seq":'*) ;;
        *) return 1 ;;                                  # no answer: the message may or may not be accepted
    esac
    sequence=${answer#*'"seq":'}
    case $answer in *'"duplicate"'*) before=' (accepted before)' ;; *) before= ;; esac
    echo "${sequence%%[!0-9]*}$before"
}
# ANCHOR_END: publish

for pause in 1 2 4 8 0; do
    publish "$3" "$4" && exit 0
    echo "no answer, or a refusal; retrying with the same key" >&2
    sleep "$pause"
done
echo "it is unknown whether the stream accepted the job; run this again with the same key" >&2
exit 1
