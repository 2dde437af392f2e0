package tenure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

const (
	entriesMax = 1_000
	// overhead is the room in a message for what is around the entries.
	overhead = 4_096
	errorMax = 10_000
)

// entry is one of a report or a settle.
type entry struct {
	run  *attempt
	said fields
	text json.RawMessage
	// isLast says that nothing is left to try if this settle is refused.
	isLast bool
}

// result is what became of an entry: a word, or why it was refused. If it is neither, the entry is to be sent again.
type result struct {
	word    string
	refusal *ProtocolError
}

func (r *result) UnmarshalJSON(text []byte) error {
	if json.Unmarshal(text, &r.word) == nil {
		return nil
	}
	var refused struct{ Error *ProtocolError }
	if err := json.Unmarshal(text, &refused); err != nil {
		return err
	}
	if refused.Error != nil && !refused.Error.Retry {
		r.refusal = refused.Error
	}
	return nil
}

// start starts a job. One that cannot start is given back by the next beats, as all that the worker does not name.
func (w *Worker) start(ctx context.Context, job claimed) error {
	kind, known := w.kinds[job.Kind]
	if !known {
		kind, known = w.kinds["*"]
	}
	if !known || job.ID == "" || job.Claim == "" {
		return fmt.Errorf("tenure: the worker cannot run the job %q of the kind %q", job.ID, job.Kind)
	}
	for _, earlier := range w.all() {
		if earlier.ID == job.ID {
			// A job has one owner at a time, and that is the later claim.
			w.stop(earlier, ErrLost)
		}
	}
	run := &attempt{
		claimed: job, worker: w, kind: kind, staleAfter: time.Duration(job.StaleAfterMS) * time.Millisecond,
		isRunning: true, writtenAt: time.Now(), changed: make(chan struct{}),
	}
	run.run = run
	run.ctx, run.cancel = context.WithCancelCause(ctx)
	w.mu.Lock()
	w.runs[job.Claim] = run
	w.mu.Unlock()
	if w.draining.Err() != nil {
		w.settle(run, fields{"outcome": "release", "began": false})
	} else {
		go w.attempt(run)
	}
	return nil
}

// attempt runs a job's handler. A handler that panics, or ends its goroutine, costs its attempt only.
func (w *Worker) attempt(run *attempt) {
	beganAt := time.Now()
	var output json.RawMessage
	err := errors.New("the handler has ended its goroutine")
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("panic: %v", panicked)
			w.tell(slog.LevelError, run, "the handler panicked", "panicked", "stack", string(debug.Stack()))
		}
		w.mu.Lock()
		for run.sending != nil {
			// Its report must not come after its end.
			_ = run.wait(context.Background())
		}
		why, began := run.why, run.began
		w.mu.Unlock()
		if why == ErrLost {
			w.forget(run, "lost")
		} else {
			end := w.endOf(run, why, began, output, err)
			end["ran_ms"] = time.Since(beganAt).Milliseconds()
			w.settle(run, end)
		}
		run.cancel(nil)
	}()
	output, err = w.handle(run)
}

func (w *Worker) handle(run *attempt) (json.RawMessage, error) {
	if run.Parts != nil {
		if err := w.fetch(run); err != nil {
			return nil, err
		}
	}
	if isNull(run.Checkpoint) {
		run.Checkpoint = nil
	}
	if isNull(run.Payload) {
		run.Payload = json.RawMessage("null")
	}
	w.mu.Lock()
	run.began = true
	w.mu.Unlock()
	w.tell(slog.LevelDebug, run, "the attempt begins", "began")
	if limit := run.kind.rules.Timeout; limit > 0 {
		defer time.AfterFunc(limit, func() { w.stop(run, ErrTimeout) }).Stop()
	}
	output, err := run.kind.handler(run.ctx, &run.Job)
	if err != nil {
		return nil, err
	}
	return encode(output)
}

// fetch gets the parts of a large job.
func (w *Worker) fetch(run *attempt) error {
	var text strings.Builder
	for part := 0; part < *run.Parts; part++ {
		var answer struct {
			Text string `json:"text"`
			Lost bool   `json:"lost"`
		}
		err := repeat(run.ctx, w.log, func() error {
			_, err := w.ask(run.ctx, "payload", fields{"receipt": run.Receipt, "part": part}, &answer)
			return err
		})
		if err == nil && answer.Lost {
			w.stop(run, ErrLost)
			err = ErrLost
		}
		if err != nil {
			return err
		}
		text.WriteString(answer.Text)
	}
	return json.Unmarshal([]byte(text.String()), &run.Job)
}

// endOf is how an attempt ends.
func (w *Worker) endOf(run *attempt, why error, began bool, output json.RawMessage, err error) fields {
	if err == nil {
		return fields{"outcome": "complete", "output": output}
	}
	switch why {
	case ErrCancelled:
		return fields{"outcome": "cancel", "error": "the job was cancelled"}
	case ErrShutdown, ErrCutOff:
		return fields{"outcome": "release", "began": began}
	case ErrTimeout:
		limit := run.kind.rules.Timeout
		return fields{"outcome": "retry", "error": fmt.Sprintf("it ran longer than the %s that its kind allows", limit)}
	}
	var retry *RetryError
	var snooze snoozeError
	var permanent permanentError
	var cancel cancelError
	text := err.Error()
	text = strings.ToValidUTF8(text[:min(len(text), errorMax)], "\uFFFD")
	switch {
	case errors.As(err, &permanent):
		return fields{"outcome": "fail", "error": text}
	case errors.As(err, &snooze):
		return fields{"outcome": "snooze", "after_ms": max(0, time.Duration(snooze).Milliseconds())}
	case errors.As(err, &cancel):
		return fields{"outcome": "cancel", "error": text}
	case errors.As(err, &retry) && retry.After != 0:
		return fields{"outcome": "retry", "error": text, "after_ms": max(0, retry.After.Milliseconds())}
	}
	w.tell(slog.LevelWarn, run, "the attempt failed", "failed", "error", text)
	return fields{"outcome": "retry", "error": text}
}

// stop asks a handler to stop. The first reason stays, but for the loss of the job.
func (w *Worker) stop(run *attempt, why stopError) {
	w.mu.Lock()
	isNew := run.why == nil || run.why != ErrLost && why == ErrLost
	if isNew {
		run.why = why
		run.cancel(why)
		run.change()
	}
	isNew = isNew && run.isRunning
	w.mu.Unlock()
	if isNew {
		w.tell(slog.LevelWarn, run, "the handler is asked to stop: "+string(why), "stopped", "why", string(why))
	}
}

func (w *Worker) forget(run *attempt, event string, more ...any) {
	level := slog.LevelWarn
	if event == "settled" {
		level = slog.LevelDebug
	}
	w.tell(level, run, "the attempt is "+event, event, more...)
	w.mu.Lock()
	run.isRunning = false
	delete(w.runs, run.Claim)
	w.mu.Unlock()
	ring(w.freed)
}

func (w *Worker) tell(level slog.Level, run *attempt, text, event string, more ...any) {
	about := []any{"event", event, "job", run.ID, "kind", run.Kind, "attempt", run.Attempt, "token", run.Token}
	w.log.Log(context.Background(), level, text, append(about, more...)...)
}

// entryMax is the most bytes of a report or a settle.
func (w *Worker) entryMax() int { return int(w.wire.nc.MaxPayload()) - overhead }

// settle ends an attempt: its entry waits to be sent.
func (w *Worker) settle(run *attempt, end fields) {
	most := w.entryMax()
	w.mu.Lock()
	defer w.mu.Unlock()
	run.isRunning = false
	text := run.about(end)
	if len(text) > most {
		why := fmt.Sprintf("the output has %d bytes, but a message of NATS holds at most %d", len(text), most)
		end = fields{"outcome": "fail", "error": why}
		text = run.about(end)
	}
	if run.pending != nil {
		reported := merge(end, fields{"report": run.pending})
		// The work is worth more than its last report.
		if longer := run.about(reported); len(longer) <= most {
			end, text = reported, longer
		}
	}
	w.settles = append(w.settles, entry{run: run, said: end, text: text})
	ring(w.toSettle)
}

// settleSome sends the settles that wait, together. After an error they are sent again.
func (w *Worker) settleSome() error {
	w.mu.Lock()
	waiting := slices.Clone(w.settles)
	w.mu.Unlock()
	if len(waiting) == 0 {
		select {
		case <-w.toSettle:
		case <-w.ended.Done():
		}
		return nil
	}
	batch := w.fitting(waiting)
	results, err := w.send("settle", batch)
	if err != nil {
		return err
	}
	w.mu.Lock()
	w.settles = w.settles[len(batch):]
	w.mu.Unlock()
	for place, entry := range batch {
		if results[place] == (result{}) {
			err = errors.New("tenure: a settle is to be repeated")
		}
		w.settled(entry, results[place])
	}
	return err
}

func (w *Worker) settled(settle entry, result result) {
	if result.word != "" {
		w.forget(settle.run, result.word)
		return
	}
	if refusal := result.refusal; refusal != nil {
		if settle.isLast {
			w.forget(settle.run, "refused", "error", refusal.Message)
			return
		}
		w.tell(slog.LevelError, settle.run, "a settle was refused", "refused", "error", refusal.Message)
		if settle.said["report"] != nil {
			delete(settle.said, "report")
		} else {
			settle.isLast = true
			settle.said = fields{"outcome": "fail", "error": "a gateway refused the end of the attempt: " + refusal.Message}
		}
		settle.text = settle.run.about(settle.said)
	}
	w.mu.Lock()
	w.settles = append(w.settles, settle)
	w.mu.Unlock()
}

// fitting are those entries, from the first on, that fit into one request.
func (w *Worker) fitting(entries []entry) []entry {
	room := w.entryMax()
	for place, entry := range entries {
		room -= len(entry.text) + 1
		if place == entriesMax || place > 0 && room < 0 {
			return entries[:place]
		}
	}
	return entries
}

// send sends entries in one request. It returns a result for each.
func (w *Worker) send(request string, entries []entry) ([]result, error) {
	var list []json.RawMessage
	for _, entry := range entries {
		list = append(list, entry.text)
	}
	var answer struct {
		Results []result `json:"results"`
	}
	_, err := w.ask(w.ended, request, fields{request + "s": list}, &answer)
	return append(answer.Results, make([]result, len(entries))...)[:len(entries)], err
}

// reports looks after the attempts, and sends the reports that are due, those of all jobs together.
func (w *Worker) reports() error {
	w.mu.Lock()
	every := time.Duration(w.terms.ReportEveryMS) * time.Millisecond
	w.mu.Unlock()
	wait := min(max(every*2/5, 10*time.Millisecond), 400*time.Millisecond)
	sleptAt := time.Now()
	select {
	case <-time.After(wait):
	case <-w.ended.Done():
		return nil
	}
	now, running := time.Now(), w.running()
	var due []entry
	w.mu.Lock()
	if now.Sub(sleptAt) > wait+time.Second {
		w.wokeAt = now
	}
	isCutOff := func(run *attempt) bool {
		// A process that was frozen does not know yet how its last writes ended.
		isAwake := now.Sub(w.wokeAt) > min(5*time.Second, run.staleAfter/2)
		return isAwake && min(now.Sub(run.writtenAt), now.Sub(w.answeredAt)) > run.staleAfter*4/5
	}
	for _, run := range running {
		if isCutOff(run) {
			defer w.stop(run, ErrCutOff)
		}
		since := now.Sub(run.sentAt)
		if run.pending == nil && run.kind.rules.Keepalive && since > run.staleAfter/6 {
			run.pending = fields{}
		}
		if run.pending != nil && run.sending == nil && run.why == nil && since >= every {
			due = append(due, entry{run: run, text: run.about(run.pending)})
			run.sending, run.pending, run.sentAt = run.pending, nil, now
		}
	}
	w.mu.Unlock()
	for len(due) > 0 {
		batch := w.fitting(due)
		due = due[len(batch):]
		w.busy.Add(1)
		go w.report(batch, now)
	}
	return nil
}

func (w *Worker) report(batch []entry, sentAt time.Time) {
	defer w.busy.Done()
	results, err := w.send("report", batch)
	if err != nil && w.ended.Err() == nil {
		w.log.Warn("reports were not written; the worker tries again", "error", err)
	}
	for place, entry := range batch {
		w.reported(entry.run, results[place], sentAt)
	}
}

func (w *Worker) reported(run *attempt, result result, sentAt time.Time) {
	switch result.word {
	case "lost":
		w.stop(run, ErrLost)
	case "cancel":
		w.stop(run, ErrCancelled)
	}
	if result.refusal != nil {
		w.tell(slog.LevelError, run, "a report was refused", "refused", "error", result.refusal.Message)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case result.refusal != nil:
		run.refused = errors.New("tenure: a report was refused: " + result.refusal.Message)
	case result.word == "":
		// It waits again, under what was said since.
		run.pending = merge(run.sending, run.pending)
	case result.word != "lost":
		run.writtenAt = sentAt
	}
	run.sending = nil
	run.change()
}
