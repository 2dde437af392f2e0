// Package tenure runs and enqueues jobs of tenure, durable background jobs, over NATS. It speaks the worker protocol to
// a gateway, and needs no connection to Postgres.
package tenure

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	version      = "0.2.0"
	takeWait     = 5 * time.Second
	uncertainFor = 30 * time.Second
	// readWithin is how late an answer to a take may be read. A gateway gives jobs back that it does not hear of for 3 s.
	readWithin = 2 * time.Second
	// stoppedWithin is how long handlers have to end after they were asked to.
	stoppedWithin = 15 * time.Second
)

// WorkerOptions are those of a worker. Only Queue, and mostly URL, are needed.
type WorkerOptions struct {
	Connection
	Queue string
	// Slots is how many jobs run at once, 8 by default.
	Slots int
	// Grace is how long handlers may go on after a stop, 20 s by default. A negative one is none.
	Grace time.Duration
}

// Worker runs the jobs of one queue.
type Worker struct {
	// ID is new for each worker.
	ID      string
	options WorkerOptions
	log     *slog.Logger
	kinds   map[string]kind
	wire    *wire

	draining context.Context
	drain    context.CancelFunc
	ended    context.Context
	end      context.CancelCauseFunc
	// freed, look and toSettle wake the one who waits for them, now or next.
	freed, look, toSettle chan struct{}
	// busy are those who send requests.
	busy sync.WaitGroup

	mu        sync.Mutex
	terms     terms
	runs      map[string]*attempt
	settles   []entry
	stoppedAt time.Time
	// uncertainUntil is until when jobs may be claimed of which the worker does not know.
	uncertainUntil time.Time
	// answeredAt is when a gateway last answered, wokeAt when the process was last found to have been frozen.
	answeredAt, wokeAt time.Time
}

// terms are the answer to a hello.
type terms struct {
	BeatEveryMS        int64 `json:"beat_every_ms"`
	ReportEveryMS      int64 `json:"report_every_ms"`
	TakeSlotsMax       int   `json:"take_slots_max"`
	CheckpointBytesMax int   `json:"checkpoint_bytes_max"`
}

var notInID = regexp.MustCompile(`[^A-Za-z0-9_-]`)

// NewWorker makes a worker. Give it its handlers, and run it.
func NewWorker(options WorkerOptions) *Worker {
	options.Slots = cmp.Or(options.Slots, 8)
	options.Grace = cmp.Or(options.Grace, 20*time.Second)
	options.Log = cmp.Or(options.Log, slog.Default())
	w := &Worker{
		options: options, log: options.Log, kinds: map[string]kind{}, runs: map[string]*attempt{},
		freed: make(chan struct{}, 1), look: make(chan struct{}, 1), toSettle: make(chan struct{}, 1),
		terms: terms{BeatEveryMS: 5_000, ReportEveryMS: 1_000, TakeSlotsMax: entriesMax, CheckpointBytesMax: 1 << 20},
	}
	random := make([]byte, 4)
	_, _ = rand.Read(random)
	host := notInID.ReplaceAllString(hostname(), "_")
	w.ID = fmt.Sprintf("%.60s-%d-%s", host, os.Getpid(), hex.EncodeToString(random))
	w.draining, w.drain = context.WithCancel(context.Background())
	w.ended, w.end = context.WithCancelCause(context.Background())
	return w
}

func hostname() string {
	name, _ := os.Hostname()
	return name
}

// Handle sets the handler of a kind, before the worker runs; "*" is every other kind.
func (w *Worker) Handle(name string, handler Handler, rules Rules) {
	w.kinds[name] = kind{handler, rules}
}

// Run serves until the context is done, or the process gets SIGTERM or SIGINT, and stops in order. It ends the process
// if a handler does not stop, because others will run its job.
func (w *Worker) Run(ctx context.Context) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
	defer stop()
	err := w.Serve(ctx)
	if len(w.running()) > 0 {
		w.log.Error("the process ends", "error", err)
		os.Exit(1)
	}
	return err
}

// Stop has the worker take no more jobs. Serve returns when those that run have ended, or were given back after the
// grace.
func (w *Worker) Stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stoppedAt.IsZero() {
		w.stoppedAt = time.Now()
	}
	w.drain()
}

// Serve serves, once, until the context is done, Stop is called, or an operator drains the worker. It returns an error
// if a handler runs on though it was asked to stop: end the process then, because others will run its job.
func (w *Worker) Serve(ctx context.Context) (err error) {
	if len(w.kinds) == 0 {
		return errors.New("tenure: the worker has no handler: add one with Handle")
	}
	defer context.AfterFunc(ctx, w.Stop)()
	if w.wire, err = dial(w.draining, w.options.Connection); err == nil {
		defer w.wire.nc.Close()
		if err = w.listen(); err == nil {
			err = repeat(w.draining, w.log, func() error { return w.hello(w.draining) })
		}
	}
	if w.draining.Err() != nil {
		return nil
	} else if err != nil {
		return err
	}
	for _, step := range []func() error{w.beats, w.settleSome, w.reports} {
		w.busy.Add(1)
		go func(step func() error) {
			defer w.busy.Done()
			w.loop(w.ended, step)
		}(step)
	}
	w.loop(w.draining, func() error { return w.takeSome(context.WithoutCancel(ctx)) })
	w.finish()
	// The goodbye is the last request.
	w.end(nil)
	w.busy.Wait()
	if errors.Is(context.Cause(w.ended), errClosed) {
		err = errClosed
	} else if _, goodbye := w.ask(context.Background(), "goodbye", fields{}, &struct{}{}); goodbye != nil {
		w.log.Warn("no gateway heard the goodbye; others find this worker gone", "error", goodbye)
	}
	left := w.running()
	for _, run := range left {
		w.stop(run, ErrCutOff)
	}
	if len(left) > 0 {
		err = errors.Join(err, fmt.Errorf("tenure: %d handlers run on though they were asked to stop", len(left)))
	}
	return err
}

// loop repeats a step until the context is done. No answer, however odd, ends it earlier.
func (w *Worker) loop(ctx context.Context, step func() error) {
	for wait := firstPause; ctx.Err() == nil; {
		if err := step(); err == nil {
			wait = firstPause
		} else if ctx.Err() == nil {
			w.log.Warn("a request failed; the worker goes on", "error", err)
			_ = wait.next(ctx)
		}
	}
}

// listen subscribes to what is for this worker alone. It must hear probes before a gateway knows it.
func (w *Worker) listen() error {
	w.wire.nc.SetClosedHandler(func(*nats.Conn) {
		w.end(errClosed)
		w.Stop()
	})
	subject := fmt.Sprintf("%s.w.%s.to.%s", w.wire.prefix, w.options.Queue, w.ID)
	_, err := w.wire.nc.Subscribe(subject, w.told)
	return err
}

func (w *Worker) told(message *nats.Msg) {
	answer := json.RawMessage("{}")
	var event struct{ Event string }
	if string(message.Data) == "drain" {
		answer, _ = encode(fields{"was_draining": w.draining.Err() != nil, "running": len(w.all())})
		w.Stop()
	} else if json.Unmarshal(message.Data, &event) == nil && event.Event == "look" {
		ring(w.look)
	}
	if message.Reply == "" {
		return
	}
	if err := message.Respond(answer); err != nil {
		w.log.Warn("a message could not be answered", "error", err)
	}
}

func (w *Worker) hello(ctx context.Context) error {
	body, err := encode(fields{
		"v": 1, "worker": w.ID, "slots": w.options.Slots, "kinds": w.rules(), "language": "go", "version": version,
		"hostname": fmt.Sprintf("%.200s", hostname()), "pid": os.Getpid(),
	})
	if err != nil {
		return err
	}
	w.mu.Lock()
	heard := w.terms
	w.mu.Unlock()
	if _, err = w.wire.once(ctx, "w."+w.options.Queue+".hello", body, answeredWithin, &heard); err != nil {
		return err
	}
	w.mu.Lock()
	w.terms, w.answeredAt = heard, time.Now()
	w.mu.Unlock()
	w.log.Info("the worker is ready", "event", "ready", "worker", w.ID)
	return nil
}

func (w *Worker) rules() fields {
	rules := fields{}
	for name, kind := range w.kinds {
		told := fields{"history": !kind.rules.NoHistory}
		if kind.rules.StaleAfter > 0 {
			told["stale_after_ms"] = kind.rules.StaleAfter.Milliseconds()
		}
		if kind.rules.DeadLetterOnCrash {
			told["on_crash"] = "dead_letter"
		}
		rules[name] = told
	}
	return rules
}

// ask sends a request once. It returns the reply subject of the answer.
func (w *Worker) ask(ctx context.Context, request string, said fields, into any) (reply string, err error) {
	body, err := encode(merge(said, fields{"v": 1, "worker": w.ID}))
	if err != nil {
		return "", err
	}
	within := answeredWithin
	if request == "take" {
		within += takeWait
	}
	send := func() { reply, err = w.wire.once(ctx, "w."+w.options.Queue+"."+request, body, within, into) }
	send()
	var refusal *ProtocolError
	// Not with the goodbye: a new row would be of a worker that is gone.
	if errors.As(err, &refusal) && refusal.Code == "hello_first" && w.ended.Err() == nil {
		if err = w.hello(ctx); err == nil {
			send()
		}
	}
	if err == nil {
		w.mu.Lock()
		w.answeredAt = time.Now()
		w.mu.Unlock()
	}
	return reply, err
}

// takeSome takes as many jobs as there are free slots, or waits for a free slot.
func (w *Worker) takeSome(ctx context.Context) error {
	w.mu.Lock()
	free := min(w.options.Slots-len(w.runs), w.terms.TakeSlotsMax)
	isUncertain := time.Now().Before(w.uncertainUntil)
	w.mu.Unlock()
	if free <= 0 {
		select {
		case <-w.freed:
		case <-w.draining.Done():
		}
		return nil
	}
	var err error
	if isUncertain {
		// Jobs that are claimed for this worker, and of which it does not know, are given back.
		var now string
		if now, err = w.beat(w.draining, ""); err == nil {
			_, err = w.beat(w.draining, now)
		}
	}
	if err == nil {
		isUncertain, err = w.take(ctx, free)
	}
	if isUncertain || err != nil {
		w.mu.Lock()
		w.uncertainUntil = time.Now().Add(uncertainFor)
		w.mu.Unlock()
	}
	return err
}

// take returns whether jobs may be claimed that it does not know. It does not end with a stop: the answer may bring jobs.
func (w *Worker) take(ctx context.Context, slots int) (isUncertain bool, err error) {
	var taken struct {
		Jobs      []claimed `json:"jobs"`
		Uncertain bool      `json:"uncertain"`
		WaitedMS  *int64    `json:"waited_ms"`
	}
	asked, askedAt := fields{"slots": slots, "wait_ms": takeWait.Milliseconds(), "kinds": w.rules()}, time.Now()
	reply, err := w.ask(w.ended, "take", asked, &taken)
	if err != nil {
		return true, err
	}
	waited := takeWait
	if taken.WaitedMS != nil {
		waited = time.Duration(*taken.WaitedMS) * time.Millisecond
	}
	if time.Since(askedAt)-waited > readWithin {
		return true, errors.New("tenure: the answer to a take was read too late; the process was frozen, or busy")
	}
	if reply != "" {
		// The gateway waits for this before it lets go of the jobs that it hands over.
		if err := w.wire.nc.Publish(reply, nil); err != nil {
			return true, err
		}
	}
	for _, job := range taken.Jobs {
		err = errors.Join(err, w.start(ctx, job))
	}
	return taken.Uncertain, err
}

// beats sends a beat when it is due, or a gateway asks for one.
func (w *Worker) beats() error {
	w.mu.Lock()
	every := time.Duration(w.terms.BeatEveryMS) * time.Millisecond
	w.mu.Unlock()
	select {
	case <-w.look:
	case <-time.After(every):
	case <-w.ended.Done():
		return nil
	}
	_, err := w.beat(w.ended, "")
	return err
}

// beat renews the worker's row. It returns the time of the answer.
func (w *Worker) beat(ctx context.Context, asOf string) (string, error) {
	named, running := w.all(), [][]any{}
	w.mu.Lock()
	// A job that is lost may be this worker's again, by another claim.
	named = slices.DeleteFunc(named, func(run *attempt) bool { return run.why == ErrLost })
	w.mu.Unlock()
	for _, run := range named {
		running = append(running, []any{run.ID, run.Token, run.Claim})
	}
	said := fields{"draining": w.draining.Err() != nil, "running": running}
	if asOf != "" {
		said["as_of"] = asOf
	}
	var answer struct {
		Now    string   `json:"now"`
		Lost   []string `json:"lost"`
		Cancel []string `json:"cancel"`
	}
	if _, err := w.ask(ctx, "beat", said, &answer); err != nil {
		return "", err
	}
	for _, run := range named {
		if slices.Contains(answer.Lost, run.ID) {
			w.stop(run, ErrLost)
		} else if slices.Contains(answer.Cancel, run.ID) {
			w.stop(run, ErrCancelled)
		}
	}
	return answer.Now, nil
}

// finish lets handlers run for the grace, and gives the others back.
func (w *Worker) finish() {
	w.mu.Lock()
	graceEnds := w.stoppedAt.Add(w.options.Grace)
	w.mu.Unlock()
	w.log.Info("the worker stops", "event", "stopping", "running", len(w.all()))
	w.untilIdle(time.Until(graceEnds))
	for _, run := range w.running() {
		w.stop(run, ErrShutdown)
	}
	w.untilIdle(stoppedWithin)
}

func (w *Worker) untilIdle(within time.Duration) {
	over := time.After(within)
	for len(w.all()) > 0 {
		select {
		case <-w.freed:
		case <-over:
			return
		case <-w.ended.Done():
			return
		}
	}
}

// all are the attempts here, also those that wait for the answer to their settle.
func (w *Worker) all() (all []*attempt) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, run := range w.runs {
		all = append(all, run)
	}
	return all
}

// running are the attempts whose handlers may still do something.
func (w *Worker) running() []*attempt {
	all := w.all()
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(all, func(run *attempt) bool { return !run.isRunning })
}

func ring(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}
