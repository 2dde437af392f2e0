package tenure

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"
)

// Handler runs an attempt of a job. Its context is done when it should stop; the cause says why.
type Handler func(ctx context.Context, job *Job) (any, error)

// Rules are those of a kind of jobs.
type Rules struct {
	// StaleAfter: a job that has reported nothing for this long counts as lost. The tenure's by default.
	StaleAfter time.Duration
	// DeadLetterOnCrash: a job whose worker is lost in the middle must not run again.
	DeadLetterOnCrash bool
	// NoHistory: a completed job of the kind leaves no row.
	NoHistory bool
	// Timeout is when an attempt is asked to stop, and is tried again.
	Timeout time.Duration
	// Keepalive has the worker report for a handler that is silent by its nature. Set Timeout, too, or one that hangs
	// looks alive for ever.
	Keepalive bool
}

type kind struct {
	handler Handler
	rules   Rules
}

// Job is what a handler knows of its job.
type Job struct {
	ID          string `json:"job"`
	Kind        string `json:"kind"`
	Attempt     int    `json:"attempt"`
	MaxAttempts int    `json:"max_attempts"`
	// Token grows with each claim of the job: other systems can refuse older ones.
	Token int64  `json:"token"`
	Claim string `json:"claim"`
	// AfterReset says that the last attempt was lost.
	AfterReset  bool            `json:"after_reset"`
	TraceParent string          `json:"traceparent"`
	Payload     json.RawMessage `json:"payload"`
	// Checkpoint is the last one that an earlier attempt has reported, or nil.
	Checkpoint json.RawMessage `json:"checkpoint"`

	run *attempt
}

// claimed is a job as a gateway hands it over.
type claimed struct {
	Job
	Receipt      string `json:"receipt"`
	StaleAfterMS int64  `json:"stale_after_ms"`
	Parts        *int   `json:"parts"`
}

// attempt is one that runs here. The worker's mutex guards what changes.
type attempt struct {
	claimed
	worker     *Worker
	kind       kind
	staleAfter time.Duration
	ctx        context.Context
	cancel     context.CancelCauseFunc

	// isRunning says that its handler may still do something.
	isRunning bool
	began     bool
	why       error
	refused   error
	// writtenAt is when the last report that is written was sent, sentAt when the last one was.
	writtenAt, sentAt time.Time
	pending, sending  fields
	// changed is closed, and replaced, at each change of what a handler waits for.
	changed chan struct{}
}

// about is an entry of a request about this attempt. What is said is encoded already.
func (a *attempt) about(said fields) json.RawMessage {
	text, _ := encode(merge(said, fields{"job": a.ID, "token": a.Token, "receipt": a.Receipt}))
	return text
}

func (a *attempt) change() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// check returns why the handler should stop.
func (a *attempt) check() error {
	if a.why == nil && a.refused == nil && !a.isRunning {
		return errors.New("tenure: the attempt has ended")
	}
	if a.why != nil {
		return a.why
	}
	return a.refused
}

// wait waits for a change. The mutex is let go of meanwhile.
func (a *attempt) wait(ctx context.Context) error {
	changed := a.changed
	a.worker.mu.Unlock()
	defer a.worker.mu.Lock()
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// merge lays what was said later over what was said earlier.
func merge(earlier, later fields) fields {
	if earlier == nil {
		return later
	}
	merged := maps.Clone(earlier)
	maps.Copy(merged, later)
	return merged
}

// Field is a part of a report.
type Field struct {
	name  string
	value any
}

// Stage names what the handler does.
func Stage(stage string) Field { return Field{"stage", stage} }

// Percent is how much is done, 0 to 100.
func Percent(percent float64) Field { return Field{"progress", min(max(percent, 0), 100)} }

// Message tells people more.
func Message(message string) Field { return Field{"message", message} }

// Checkpoint is any JSON; the next attempt begins with it.
func Checkpoint(checkpoint any) Field { return Field{"checkpoint", checkpoint} }

// Key is an idempotency key for an effect of this job elsewhere: the same in every attempt.
func (j *Job) Key(name string) string { return j.ID + "/" + name }

// Progress reports, which is the sign of life. What it does not name stays as it is. It returns at once, unless no
// write succeeded for half of StaleAfter. Its error is the reason to stop.
func (j *Job) Progress(said ...Field) error {
	a, report := j.run, fields{}
	for _, field := range said {
		value, err := encode(field.value)
		if err != nil {
			return fmt.Errorf("tenure: the %s of a report: %w", field.name, err)
		}
		report[field.name] = value
	}
	a.worker.mu.Lock()
	defer a.worker.mu.Unlock()
	if err := a.check(); err != nil {
		return err
	}
	checkpoint, _ := report["checkpoint"].(json.RawMessage)
	if most := a.worker.terms.CheckpointBytesMax; len(checkpoint) > most {
		return fmt.Errorf("tenure: the checkpoint has %d bytes, but at most %d are allowed", len(checkpoint), most)
	}
	whole := a.about(merge(merge(a.sending, a.pending), report))
	if most := a.worker.entryMax(); len(whole) > most {
		return fmt.Errorf("tenure: the report has %d bytes, but a message of NATS holds at most %d", len(whole), most)
	}
	a.pending = merge(a.pending, report)
	for time.Since(a.writtenAt) > a.staleAfter/2 {
		if err := a.wait(a.ctx); err != nil {
			return err
		}
		if err := a.check(); err != nil {
			return err
		}
	}
	return nil
}

// Flush waits until the last report is written. Reports are sent once a second or so: it may take as long.
func (j *Job) Flush(ctx context.Context) error {
	a := j.run
	a.worker.mu.Lock()
	defer a.worker.mu.Unlock()
	for {
		if err := a.check(); err != nil {
			return err
		}
		if a.pending == nil && a.sending == nil {
			return nil
		}
		if err := a.wait(ctx); err != nil {
			return err
		}
	}
}

// isNull says that JSON is absent.
func isNull(text json.RawMessage) bool { return len(text) == 0 || bytes.Equal(text, []byte("null")) }
