// The program under test: handlers whose every step a test can see, as JSON lines on standard output.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	tenure "github.com/tenure-rs/tenure/clients/go"
)

// shown writes the events of a worker to standard output, and all else to standard error.
type shown struct {
	slog.Handler
	mu sync.Mutex
}

func (s *shown) Handle(ctx context.Context, record slog.Record) error {
	line := map[string]any{}
	record.Attrs(func(attr slog.Attr) bool {
		switch attr.Key {
		case "event", "worker", "job", "kind", "attempt", "token", "why":
			line[attr.Key] = attr.Value.Any()
		}
		return true
	})
	switch line["event"] {
	case "ready", "began", "stopped", "settled", "lost":
		text, err := json.Marshal(line)
		if err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		_, err = os.Stdout.Write(append(text, '\n'))
		return err
	}
	if record.Level < slog.LevelInfo {
		return nil
	}
	return s.Handler.Handle(ctx, record)
}

func env(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

// die is as kill -9.
func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

func sleep(ctx context.Context, wait time.Duration) error {
	select {
	case <-time.After(wait):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func millis(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

type object map[string]any

// on is a handler whose payload is a P.
func on[P any](handler func(ctx context.Context, job *tenure.Job, payload P) (any, error)) tenure.Handler {
	return func(ctx context.Context, job *tenure.Job) (any, error) {
		var payload P
		if err := json.Unmarshal(job.Payload, &payload); err != nil {
			return nil, tenure.Permanent(err)
		}
		return handler(ctx, job, payload)
	}
}

func report(ctx context.Context, job *tenure.Job, payload struct {
	Reports int
	EveryMS int64 `json:"every_ms"`
}) (any, error) {
	for i := 1; i <= payload.Reports; i++ {
		err := job.Progress(tenure.Stage("working"), tenure.Percent(100*float64(i)/float64(payload.Reports)),
			tenure.Message(fmt.Sprintf("%d of %d", i, payload.Reports)), tenure.Checkpoint(object{"i": i}))
		if err == nil {
			err = sleep(ctx, millis(payload.EveryMS))
		}
		if err != nil {
			return nil, err
		}
	}
	return object{"from": job.Checkpoint}, nil
}

func resume(ctx context.Context, job *tenure.Job) (any, error) {
	if job.Checkpoint == nil {
		if err := written(ctx, job, object{"i": 3}); err != nil {
			return nil, err
		}
		die()
	}
	return object{"from": job.Checkpoint}, nil
}

func written(ctx context.Context, job *tenure.Job, checkpoint any) error {
	if err := job.Progress(tenure.Checkpoint(checkpoint)); err != nil {
		return err
	}
	return job.Flush(ctx)
}

func retry(_ context.Context, job *tenure.Job, payload struct {
	AfterMS *int64 `json:"after_ms"`
}) (any, error) {
	if job.Attempt > 1 {
		return object{"attempt": job.Attempt}, nil
	}
	again := &tenure.RetryError{Err: errors.New("not yet")}
	if payload.AfterMS != nil {
		again.After = max(millis(*payload.AfterMS), 1)
	}
	return nil, again
}

func snooze(ctx context.Context, job *tenure.Job, payload struct{ MS int64 }) (any, error) {
	if job.Checkpoint != nil {
		return object{"attempt": job.Attempt}, nil
	}
	if err := written(ctx, job, object{"snoozed": true}); err != nil {
		return nil, err
	}
	return nil, tenure.Snooze(millis(payload.MS))
}

func sleeps(ctx context.Context, job *tenure.Job, payload struct {
	MS      int64
	EveryMS int64 `json:"every_ms"`
}) (any, error) {
	until := time.Now().Add(millis(payload.MS))
	for left := time.Until(until); left > 0; left = time.Until(until) {
		if payload.EveryMS > 0 {
			left = min(left, millis(payload.EveryMS))
		}
		if err := sleep(ctx, left); err != nil {
			return nil, err
		}
		if payload.EveryMS > 0 {
			if err := job.Progress(tenure.Stage("sleeping")); err != nil {
				return nil, err
			}
		}
	}
	return "slept", nil
}

type order struct {
	Lines []struct{ Quantity, Cents int64 }
}

// first does something in the first attempt, and returns the number of any later one.
func first(do func(ctx context.Context) error) tenure.Handler {
	return func(ctx context.Context, job *tenure.Job) (any, error) {
		if job.Attempt == 1 {
			if err := do(ctx); err != nil {
				return nil, err
			}
		}
		return object{"attempt": job.Attempt}, nil
	}
}

func ends(err error) tenure.Handler {
	return func(context.Context, *tenure.Job) (any, error) { return nil, err }
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: kit QUEUE SLOTS")
		os.Exit(2)
	}
	slots, err := strconv.Atoi(os.Args[2])
	grace, graceErr := strconv.ParseInt(env("TENURE_SHUTDOWN_GRACE_MS", "10000"), 10, 64)
	if err = errors.Join(err, graceErr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	var handler slog.Handler = slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})
	if os.Getenv("TENURE_KIT_QUIET") == "" {
		handler = &shown{Handler: slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})}
	}
	w := tenure.NewWorker(tenure.WorkerOptions{
		Connection: tenure.Connection{
			URL:         env("NATS_URL", "nats://127.0.0.1:4222"),
			Prefix:      os.Getenv("TENURE_SUBJECT_PREFIX"),
			InboxPrefix: os.Getenv("TENURE_NATS_INBOX_PREFIX"),
			Log:         slog.New(handler),
		},
		Queue: os.Args[1],
		Slots: slots,
		// Zero would be the default.
		Grace: max(millis(grace), 1),
	})
	handlers := map[string]tenure.Handler{
		"echo":   func(_ context.Context, job *tenure.Job) (any, error) { return job.Payload, nil },
		"report": on(report),
		"resume": resume,
		"retry":  on(retry),
		"error":  first(func(context.Context) error { return errors.New("boom") }),
		"fail":   ends(tenure.Permanent(errors.New("no attempt could mend it"))),
		"snooze": on(snooze),
		"cancel": ends(tenure.Cancel("not needed")),
		"sleep":  on(sleeps),
		"crash": first(func(context.Context) error {
			die()
			return nil
		}),
		"once_key": func(_ context.Context, job *tenure.Job) (any, error) {
			return object{"key": job.Key("x"), "again": job.Key("x")}, nil
		},
		"order": on(func(_ context.Context, _ *tenure.Job, payload order) (any, error) {
			began, sum := time.Now().UnixMicro(), int64(0)
			for _, line := range payload.Lines {
				sum += line.Quantity * line.Cents
			}
			if os.Getenv("TENURE_KIT_STAMP") == "" {
				return nil, nil
			}
			return began, nil
		}),
	}
	for kind, handler := range handlers {
		w.Handle(kind, handler, tenure.Rules{})
	}
	w.Handle("slow", first(func(ctx context.Context) error { return sleep(ctx, time.Minute) }),
		tenure.Rules{Timeout: time.Second})
	if err := w.Run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
