package tenure

import (
	"errors"
	"fmt"
	"time"
)

// stopError is why a handler was asked to stop.
type stopError string

func (e stopError) Error() string {
	if e == "lost" {
		return "tenure: the job is no longer this worker's"
	}
	return "tenure: the handler is to stop: " + string(e)
}

// The causes of a handler's context that is done.
const (
	// ErrLost: the job has another owner. Nothing that its handler does counts.
	ErrLost stopError = "lost"
	// ErrCancelled: the job was cancelled.
	ErrCancelled stopError = "cancelled"
	// ErrShutdown: the worker stops, and its grace is over. The job runs elsewhere; the attempt does not count.
	ErrShutdown stopError = "shutdown"
	// ErrTimeout: the attempt has taken longer than its kind allows.
	ErrTimeout stopError = "timeout"
	// ErrCutOff: no gateway was reached for most of the time after which the job counts as lost.
	ErrCutOff stopError = "cut off"
)

// RetryError has the job tried again, as any other error does, but at a time of its own.
type RetryError struct {
	Err error
	// After is the pause. Zero is the usual backoff; less than a millisecond is none.
	After time.Duration
}

func (e *RetryError) Error() string {
	if e.Err == nil {
		return "the handler asked for another attempt"
	}
	return e.Err.Error()
}

func (e *RetryError) Unwrap() error { return e.Err }

type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }

// Permanent marks an error that no attempt could mend: the job becomes a dead letter. Of nil, it is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return permanentError{err}
}

type snoozeError time.Duration

func (e snoozeError) Error() string { return "snoozed for " + time.Duration(e).String() }

// Snooze has the job run again after a while. The attempt does not count.
func Snooze(after time.Duration) error { return snoozeError(after) }

type cancelError string

func (e cancelError) Error() string { return string(e) }

// Cancel ends the job as cancelled, for this reason.
func Cancel(reason string) error { return cancelError(reason) }

// ProtocolError is the refusal of a gateway.
type ProtocolError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	// Retry says that the same request may succeed later.
	Retry bool `json:"retry"`
}

func (e *ProtocolError) Error() string { return fmt.Sprintf("tenure: %s: %s", e.Code, e.Message) }

// unanswered wraps why no gateway has answered: the request may be repeated.
type unanswered struct{ error }

func (e unanswered) Unwrap() error { return e.error }

var errClosed = errors.New("tenure: the connection to NATS is closed")

// mayRepeat says whether an error leaves open what became of its request, or asks to repeat it.
func mayRepeat(err error) bool {
	var refusal *ProtocolError
	var lost unanswered
	return errors.As(err, &lost) || errors.As(err, &refusal) && refusal.Retry
}
