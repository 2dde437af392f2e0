package tenure

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"time"
)

// Client is a producer. Its requests are repeated until a gateway answers, or their context is done.
type Client struct{ wire *wire }

// Connect connects to NATS. It tries again until the context is done.
func Connect(ctx context.Context, to Connection) (*Client, error) {
	wire, err := dial(ctx, to)
	if err != nil {
		return nil, err
	}
	return &Client{wire}, nil
}

// Close closes the connection.
func (c *Client) Close() { c.wire.nc.Close() }

// Request asks for a job. Only Kind and, mostly, Payload are needed.
type Request struct {
	Kind    string `json:"kind"`
	Payload any    `json:"payload"`
	// Key is random by default. At most one job of the queue is created for it.
	Key         string        `json:"key"`
	Delay       time.Duration `json:"-"`
	RunAt       time.Time     `json:"-"`
	MaxAttempts int           `json:"max_attempts,omitempty"`
	Lane        string        `json:"lane,omitempty"`
	Priority    int           `json:"priority,omitempty"`
	// Tags are words or key=value to find the job by, such as customer=7.
	Tags        []string      `json:"tags,omitempty"`
	TraceParent string        `json:"traceparent,omitempty"`
}

// Enqueued is the answer to an Enqueue. Created is false if another job holds the key.
type Enqueued struct {
	Job     string `json:"job"`
	Created bool   `json:"created"`
}

// State is a job as its producer sees it.
type State struct {
	Job         string   `json:"job"`
	Kind        string   `json:"kind"`
	Status      string   `json:"status"`
	Attempt     int      `json:"attempt"`
	MaxAttempts int      `json:"max_attempts"`
	Stage       string   `json:"stage"`
	Progress    *float64 `json:"progress"`
	Message     string   `json:"message"`
	// Output is nil if there is none. OutputOmitted says that it was too large for the answer.
	Output        json.RawMessage `json:"output"`
	OutputOmitted bool            `json:"output_omitted"`
	LastError     string          `json:"last_error"`
	Ended         bool            `json:"ended"`
}

// Enqueue enqueues a job. If the context ends it, the job may exist.
func (c *Client) Enqueue(ctx context.Context, queue string, job Request) (enqueued Enqueued, err error) {
	if job.Key == "" {
		random := make([]byte, 16)
		rand.Read(random)
		job.Key = hex.EncodeToString(random)
	}
	body := struct {
		V int `json:"v"`
		Request
		DelayMS int64  `json:"delay_ms,omitempty"`
		RunAt   string `json:"run_at,omitempty"`
	}{V: 1, Request: job, DelayMS: job.Delay.Milliseconds()}
	if !job.RunAt.IsZero() {
		body.RunAt = job.RunAt.UTC().Format(time.RFC3339Nano)
	}
	return enqueued, c.ask(ctx, queue, "enqueue", body, 0, &enqueued)
}

// Job looks at a job.
func (c *Client) Job(ctx context.Context, queue, job string) (seen State, err error) {
	err = c.ask(ctx, queue, "job", fields{"v": 1, "job": job}, 0, &seen)
	return seen.read(), err
}

// Wait waits for the end of a job. With the error of a deadline, it returns the job as it was last seen.
func (c *Client) Wait(ctx context.Context, queue, job string) (seen State, err error) {
	for {
		wait, isLast := 20*time.Second, false
		if until, ends := ctx.Deadline(); ends && time.Until(until) < wait+lastLook {
			wait, isLast = max(0, time.Until(until)-lastLook), true
		}
		var next State
		err := c.ask(ctx, queue, "wait", fields{"v": 1, "job": job, "wait_ms": wait.Milliseconds()}, wait, &next)
		if err != nil {
			return seen, err
		}
		if seen = next.read(); seen.Ended {
			return seen, nil
		}
		if isLast {
			return seen, context.DeadlineExceeded
		}
	}
}

// lastLook is how long before a deadline the state of a job is asked for.
const lastLook = 200 * time.Millisecond

// Cancel cancels a job. False: it runs, and its handler was told; or it had ended.
func (c *Client) Cancel(ctx context.Context, queue, job string) (bool, error) {
	var answer struct {
		Cancelled bool `json:"cancelled"`
	}
	err := c.ask(ctx, queue, "cancel", fields{"v": 1, "job": job}, 0, &answer)
	return answer.Cancelled, err
}

func (c *Client) ask(ctx context.Context, queue, request string, body any, wait time.Duration, into any) error {
	text, err := encode(body)
	if err != nil {
		return err
	}
	return repeat(ctx, c.wire.log, func() error {
		_, err := c.wire.once(ctx, "p."+queue+"."+request, text, wait+answeredWithin, into)
		return err
	})
}

func (s State) read() State {
	if isNull(s.Output) {
		s.Output = nil
	}
	return s
}
