// Publishes one job, with only the NATS client: produce QUEUE KIND JSON KEY
//
//	go mod init produce && go get github.com/nats-io/nats.go
//	NATS_URL=nats://127.0.0.1:4222 go run produce.go texts word_count '"one two"' text-7
//
// Prints the sequence that the stream assigned. With the same key, a second run publishes the same job.
package main

import (
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go"
)

const tries = 5

// ANCHOR: publish
// publish repeats the message until the stream confirms it; the key makes repetition safe.
func publish(js nats.JetStreamContext, subject, payload, key string) (*nats.PubAck, error) {
	for attempt := 1; ; attempt++ {
		message := nats.NewMsg(subject)
		message.Data = []byte(payload)
		message.Header.Set("Tenure-Idempotency-Key", key)
		// The stream compares Nats-Msg-Id across all queues; the subject in it limits it to this queue.
		ack, err := js.PublishMsg(message, nats.MsgId(subject+":"+key), nats.AckWait(5*time.Second))
		if err == nil {
			return ack, nil
		}
		// No answer: the message may or may not be accepted. A refusal (full stream, no leader): it is not.
		fmt.Fprintf(os.Stderr, "try %d: %v\n", attempt, err)
		if attempt == tries {
			return nil, err
		}
		time.Sleep(time.Second << (attempt - 1))
	}
}

// ANCHOR_END: publish

func main() {
	if len(os.Args) != 5 {
		fail("usage: produce QUEUE KIND JSON KEY")
	}
	queue, kind, payload, key := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	inbox, prefix := os.Getenv("TENURE_NATS_INBOX_PREFIX"), os.Getenv("TENURE_SUBJECT_PREFIX")
	if inbox == "" {
		inbox = "_INBOX"
	}
	if prefix == "" {
		prefix = "jobs"
	}
	connection, err := nats.Connect(os.Getenv("NATS_URL"), nats.CustomInboxPrefix(inbox))
	if err != nil {
		fail(err)
	}
	defer connection.Close()
	js, err := connection.JetStream()
	if err != nil {
		fail(err)
	}
	ack, err := publish(js, fmt.Sprintf("%s.%s.%s", prefix, queue, kind), payload, key)
	if err != nil {
		fail("it is unknown whether the stream accepted the job; run this again with the same key")
	}
	if ack.Duplicate {
		fmt.Println(ack.Sequence, "(accepted before)")
	} else {
		fmt.Println(ack.Sequence)
	}
}

func fail(why any) {
	fmt.Fprintln(os.Stderr, why)
	os.Exit(1)
}
