package tenure

// What the conformance kit does not reach: a gateway that answers oddly, late or never. It is played here, over a real
// NATS.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

var server = sync.OnceValues(func() (string, error) {
	program := "../../.tools/nats/bin/nats-server"
	if named := os.Getenv("TENURE_NATS_SERVER"); named != "" {
		program = named
	} else if _, err := os.Stat(program); err != nil {
		program = "nats-server"
	}
	folder, err := os.MkdirTemp("", "tenure-go-")
	if err != nil {
		return "", err
	}
	started := exec.Command(program, "-a", "127.0.0.1", "-p", "-1", "--ports_file_dir", folder)
	if err := started.Start(); err != nil {
		return "", err
	}
	atEnd = func() {
		_ = started.Process.Kill()
		_ = os.RemoveAll(folder)
	}
	var ports struct{ Nats []string }
	for range [500]int{} {
		text, _ := os.ReadFile(filepath.Join(folder, fmt.Sprintf("nats-server_%d.ports", started.Process.Pid)))
		if json.Unmarshal(text, &ports) == nil && len(ports.Nats) > 0 {
			return ports.Nats[0], nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return "", errors.New("nats-server names no port")
})

var atEnd = func() {}

func TestMain(m *testing.M) {
	code := m.Run()
	atEnd()
	os.Exit(code)
}

type asked struct {
	name string
	body map[string]any
}

// gateway serves a queue of its own.
type gateway struct {
	*testing.T
	url, queue string
	nc         *nats.Conn

	mu        sync.Mutex
	asked     []asked
	logged    []string
	jobs      []any
	answers   map[string]func(body map[string]any) any
	confirmed atomic.Int32
	// address is that of the gateway; requests to another one get no answer, as from one that is frozen.
	address atomic.Value
}

var queues atomic.Int32

// never is no answer, and text one that is sent as it is.
type never struct{}
type text string

func play(t *testing.T) *gateway {
	t.Parallel()
	url, err := server()
	if err != nil {
		t.Skipf("no nats-server: %v", err)
	}
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	g := &gateway{T: t, url: url, nc: nc, queue: fmt.Sprintf("q%d", queues.Add(1))}
	g.address.Store("one")
	each := func(name, word string) func(map[string]any) any {
		return func(body map[string]any) any {
			results := []any{}
			for range body[name].([]any) {
				results = append(results, word)
			}
			return fields{"results": results}
		}
	}
	g.answers = map[string]func(map[string]any) any{
		"hello": func(map[string]any) any {
			return fields{"beat_every_ms": 200, "report_every_ms": 50, "take_slots_max": 1000, "checkpoint_bytes_max": 1 << 20}
		},
		"take": func(map[string]any) any {
			g.mu.Lock()
			defer g.mu.Unlock()
			jobs := append([]any{}, g.jobs...)
			g.jobs = nil
			return fields{"jobs": jobs, "uncertain": false, "waited_ms": 20}
		},
		"report":  each("reports", "ok"),
		"settle":  each("settles", "settled"),
		"beat":    func(map[string]any) any { return fields{"now": "now", "lost": []string{}, "cancel": []string{}} },
		"goodbye": func(map[string]any) any { return fields{"gone": true} },
	}
	if _, err := nc.Subscribe("confirm."+g.queue, func(*nats.Msg) { g.confirmed.Add(1) }); err != nil {
		t.Fatal(err)
	}
	for _, side := range []string{"w", "p"} {
		subject := fmt.Sprintf("tenure.jobs.%s.%s.*", side, g.queue)
		if _, err := nc.Subscribe(subject, func(message *nats.Msg) { go g.serve(message) }); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return g
}

func (g *gateway) serve(message *nats.Msg) {
	name, at, _ := strings.Cut(message.Subject[strings.LastIndex(message.Subject, ".")+1:], "@")
	address := g.address.Load().(string)
	if at != "" && at != address {
		return
	}
	if name == "ping" {
		_ = message.Respond([]byte(`{"ok":{"gateway":"` + address + `"}}`))
		return
	}
	if strings.HasPrefix(message.Subject, "tenure.jobs.w.") && !strings.HasPrefix(message.Reply, "_INBOX_go.") {
		g.Error(message.Reply)
	}
	var body map[string]any
	_ = json.Unmarshal(message.Data, &body)
	g.mu.Lock()
	g.asked = append(g.asked, asked{name, body})
	answer := g.answers[name]
	g.mu.Unlock()
	var said string
	switch value := answer(body).(type) {
	case never:
		return
	case text:
		said = string(value)
	default:
		encoded, _ := encode(fields{"ok": value})
		said = string(encoded)
	}
	reply := &nats.Msg{Subject: message.Reply, Data: []byte(said)}
	if name == "take" {
		// An empty take waits a little, as a real one does.
		time.Sleep(20 * time.Millisecond)
		if strings.Contains(said, `"job"`) {
			reply.Reply = "confirm." + g.queue
		}
	}
	_ = g.nc.PublishMsg(reply)
}

// Enabled and the others are those of the worker's log.
func (g *gateway) Enabled(context.Context, slog.Level) bool { return true }
func (g *gateway) WithAttrs([]slog.Attr) slog.Handler       { return g }
func (g *gateway) WithGroup(string) slog.Handler            { return g }
func (g *gateway) Handle(_ context.Context, record slog.Record) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.logged = append(g.logged, record.Message)
	return nil
}

func (g *gateway) has(logged string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Contains(g.logged, logged)
}

// of are the bodies of these requests.
func (g *gateway) of(name string) (bodies []map[string]any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, asked := range g.asked {
		if asked.name == name {
			bodies = append(bodies, asked.body)
		}
	}
	return bodies
}

// entries are those of all reports, or all settles.
func (g *gateway) entries(name string) (entries []map[string]any) {
	for _, body := range g.of(name) {
		for _, entry := range body[name+"s"].([]any) {
			entries = append(entries, entry.(map[string]any))
		}
	}
	return entries
}

func (g *gateway) worker(handler Handler, rules Rules) *Worker {
	w := NewWorker(WorkerOptions{
		Connection: Connection{URL: g.url, InboxPrefix: "_INBOX_go", Log: slog.New(g)}, Queue: g.queue, Grace: -1,
	})
	w.Handle("known", handler, rules)
	return w
}

// serve serves until something is true.
func (g *gateway) until(w *Worker, isTrue func() bool) {
	g.Helper()
	served := make(chan error, 1)
	go func() { served <- w.Serve(context.Background()) }()
	g.eventually(isTrue)
	w.Stop()
	if err := <-served; err != nil {
		g.Fatal(err)
	}
}

func (g *gateway) eventually(isTrue func() bool) {
	g.Helper()
	for i := 0; !isTrue(); i++ {
		if i > 1_500 {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.Fatalf("it does not become true: %v %.3000v", g.logged, g.asked)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (g *gateway) settled(count int) func() bool {
	return func() bool { return len(g.entries("settle")) >= count }
}

func (g *gateway) equal(found, wanted any) {
	g.Helper()
	if !reflect.DeepEqual(found, wanted) {
		g.Errorf("%.1000s is not %.1000s", fmt.Sprintf("%#v", found), fmt.Sprintf("%#v", wanted))
	}
}

func job(n int, more fields) fields {
	return merge(fields{
		"job": fmt.Sprint("job-", n), "kind": "known", "token": n, "claim": fmt.Sprint("claim-", n), "receipt": "r",
		"attempt": 1, "max_attempts": 5, "stale_after_ms": 30_000, "after_reset": false, "payload": n, "checkpoint": nil,
	}, more)
}

func refused(retry bool) fields {
	return fields{"error": fields{"code": "bad_request", "message": "that is wrong", "retry": retry}}
}

func refusal(retry bool) text {
	said, _ := encode(refused(retry))
	return text(said)
}

func echo(_ context.Context, job *Job) (any, error) { return job.Payload, nil }

func TestConfirmsItsJobsAndSurvivesOddAnswers(t *testing.T) {
	g := play(t)
	odd := []any{text("no JSON"), text("[]"), fields{"jobs": []any{nil}}, fields{"jobs": []any{job(1, fields{"kind": "x"})}}}
	takes, beats := g.answers["take"], g.answers["beat"]
	g.answers["take"] = func(body map[string]any) any {
		if len(odd) == 0 {
			return takes(body)
		}
		next := odd[0]
		odd = odd[1:]
		return next
	}
	var beat atomic.Int32
	g.answers["beat"] = func(body map[string]any) any {
		switch beat.Add(1) {
		case 1:
			return text("[]")
		case 2:
			return refusal(false)
		}
		return beats(body)
	}
	g.jobs = []any{job(2, nil)}
	g.until(g.worker(echo, Rules{}), g.settled(1))
	settle := g.entries("settle")[0]
	delete(settle, "ran_ms")
	g.equal(settle, map[string]any{"job": "job-2", "token": 2.0, "receipt": "r", "outcome": "complete", "output": 2.0})
	g.equal(g.confirmed.Load(), int32(2))
	// What it might have been given unknowingly goes back before the next take, and after a beat without as_of.
	var names []string
	for _, asked := range g.asked {
		if asked.body["as_of"] != nil {
			asked.name = "as_of"
		}
		names = append(names, asked.name)
	}
	taken := slices.Index(names, "take")
	second := taken + 1 + slices.Index(names[taken+1:], "take")
	g.equal([]bool{slices.Contains(names[taken:second], "as_of"), slices.Contains(names[taken:second], "beat")},
		[]bool{true, true})
	g.equal([]string{names[0], names[len(names)-1]}, []string{"hello", "goodbye"})
}

func TestStartsNoJobOfAnAnswerThatItReadsLate(t *testing.T) {
	g := play(t)
	var takes atomic.Int32
	g.answers["take"] = func(map[string]any) any {
		n := takes.Add(1)
		if n == 1 {
			// The answer lies there, as in a process that is frozen.
			time.Sleep(2300 * time.Millisecond)
		}
		if n > 2 {
			return fields{"jobs": []any{}, "waited_ms": 20}
		}
		return fields{"jobs": []any{job(int(n), nil)}, "waited_ms": 20}
	}
	g.until(g.worker(echo, Rules{}), g.settled(1))
	g.equal([]any{g.entries("settle")[0]["output"], g.confirmed.Load()}, []any{2.0, int32(1)})
}

func TestGetsALargeJobInParts(t *testing.T) {
	g := play(t)
	whole := []rune(`{"payload": "` + strings.Repeat("ä😀", 10) + `", "checkpoint": {"i": 3}}`)
	g.answers["payload"] = func(body map[string]any) any {
		part := int(body["part"].(float64)) * 20
		return fields{"text": string(whole[part:min(part+20, len(whole))])}
	}
	g.jobs = []any{job(1, fields{"payload": nil, "parts": (len(whole) + 19) / 20})}
	g.until(g.worker(func(_ context.Context, job *Job) (any, error) {
		return []any{job.Payload, job.Checkpoint}, nil
	}, Rules{}), g.settled(1))
	g.equal(g.entries("settle")[0]["output"], []any{strings.Repeat("ä😀", 10), map[string]any{"i": 3.0}})
}

func TestRefusesWhatNoMessageHolds(t *testing.T) {
	g := play(t)
	g.jobs = []any{job(1, nil), job(2, nil), job(3, nil), job(4, nil), job(5, nil)}
	large := strings.Repeat("<", 1<<20)
	g.until(g.worker(func(_ context.Context, job *Job) (any, error) {
		switch job.Token {
		case 1:
			return large, nil
		case 2:
			return nil, job.Progress(Checkpoint(large))
		case 3:
			return nil, job.Progress(Message(large))
		case 4:
			if err := job.Progress(Checkpoint(large[9_000:])); err != nil {
				return nil, err
			}
		case 5:
			return nil, errors.New(large + "\xff")
		}
		return large[9_000:], nil
	}, Rules{}), g.settled(5))
	by := map[float64]map[string]any{}
	for _, settle := range g.entries("settle") {
		by[settle["token"].(float64)] = settle
	}
	for token, text := range map[float64]string{1: "the output has 10", 2: "the checkpoint has 10", 3: "the report has 10"} {
		if !strings.Contains(by[token]["error"].(string), text) {
			t.Error(by[token])
		}
	}
	g.equal(by[1]["outcome"], "fail")
	g.equal(by[4]["outcome"], "complete")
	g.equal([]any{by[5]["outcome"], len(by[5]["error"].(string))}, []any{"retry", 10_000})
}

func TestSendsReportsTogetherAndSeldom(t *testing.T) {
	g := play(t)
	g.jobs = []any{job(1, nil), job(2, nil), job(3, nil)}
	half := strings.Repeat("x", 1<<19)
	g.until(g.worker(func(ctx context.Context, job *Job) (any, error) {
		for i := range [200]int{} {
			if err := job.Progress(Percent(float64(i))); err != nil {
				return nil, err
			}
		}
		if err := job.Progress(Checkpoint(half)); err != nil {
			return nil, err
		}
		return nil, job.Flush(ctx)
	}, Rules{}), g.settled(3))
	sent := g.entries("report")
	if len(sent) > 60 || len(g.of("report")) < 3 {
		t.Errorf("%d reports in %d requests", len(sent), len(g.of("report")))
	}
	percents := map[any]any{}
	for _, report := range sent {
		if report["progress"] != nil {
			percents[report["job"]] = report["progress"]
		}
	}
	g.equal(percents, map[any]any{"job-1": 199.0, "job-2": 199.0, "job-3": 199.0})
}

func TestRepeatsAReportAndGivesTheLastOneToTheSettle(t *testing.T) {
	g := play(t)
	var reports atomic.Int32
	g.answers["report"] = func(map[string]any) any {
		switch reports.Add(1) {
		case 1:
			return refusal(true)
		case 2:
			return fields{"results": []any{"ok"}}
		}
		// The settle must not overtake it.
		time.Sleep(300 * time.Millisecond)
		return refusal(true)
	}
	g.jobs = []any{job(1, nil)}
	g.until(g.worker(func(ctx context.Context, job *Job) (any, error) {
		err := errors.Join(job.Progress(Stage("a"), Checkpoint(1)), job.Flush(ctx))
		err = errors.Join(err, job.Progress(Stage("b"), Percent(0)))
		g.eventually(func() bool { return reports.Load() > 2 })
		return nil, errors.Join(err, job.Progress(Checkpoint(2)), fmt.Errorf("later: %w", Snooze(time.Second)))
	}, Rules{}), g.settled(1))
	written := g.entries("report")
	g.equal(written[1], written[0])
	settle := g.entries("settle")[0]
	g.equal([]any{settle["outcome"], settle["after_ms"], settle["report"]},
		[]any{"snooze", 1000.0, map[string]any{"stage": "b", "progress": 0.0, "checkpoint": 2.0}})
}

func TestEndsAnAttemptWhoseReportIsRefused(t *testing.T) {
	g := play(t)
	g.answers["report"] = func(map[string]any) any { return fields{"results": []any{refused(false)}} }
	g.jobs = []any{job(1, nil)}
	g.until(g.worker(func(ctx context.Context, job *Job) (any, error) {
		if err := job.Progress(Stage("half \xff")); err != nil {
			return nil, err
		}
		return nil, job.Flush(ctx)
	}, Rules{}), g.settled(1))
	g.equal(g.entries("report")[0]["stage"], "half \uFFFD")
	settle := g.entries("settle")[0]
	g.equal([]any{settle["outcome"], settle["error"]}, []any{"retry", "tenure: a report was refused: that is wrong"})
}

func TestEndsAnAttemptOtherwiseWhoseEndIsRefused(t *testing.T) {
	g := play(t)
	var settles atomic.Int32
	g.answers["settle"] = func(map[string]any) any {
		return fields{"results": []any{refused(settles.Add(1) == 2)}}
	}
	g.jobs = []any{job(1, nil)}
	g.until(g.worker(func(_ context.Context, job *Job) (any, error) {
		return 7, job.Progress(Checkpoint(1))
	}, Rules{}), func() bool { return g.has("the attempt is refused") })
	var ends []any
	for _, settle := range g.entries("settle") {
		ends = append(ends, settle["outcome"], settle["report"] != nil, settle["error"])
	}
	text := "a gateway refused the end of the attempt: that is wrong"
	g.equal(ends, []any{"complete", true, nil, "complete", false, nil, "complete", false, nil, "fail", false, text})
}

func TestAHandlerThatPanicsCostsItsAttemptOnly(t *testing.T) {
	g := play(t)
	g.jobs = []any{job(1, nil), job(2, nil), job(3, nil), job(4, nil)}
	g.until(g.worker(func(_ context.Context, job *Job) (any, error) {
		switch job.Token {
		case 1:
			panic("it broke")
		case 2:
			runtime.Goexit()
		case 3:
			return make(chan int), nil
		}
		return nil, &RetryError{After: time.Microsecond}
	}, Rules{}), g.settled(4))
	errs := map[float64]any{}
	for _, settle := range g.entries("settle") {
		g.equal(settle["outcome"], "retry")
		errs[settle["token"].(float64)] = settle["error"]
		g.equal(settle["after_ms"] != nil, settle["token"] == 4.0)
	}
	g.equal(errs[1], "panic: it broke")
	g.equal(errs[2], "the handler has ended its goroutine")
}

func TestStopsTheOlderOfTwoAttemptsOfAJob(t *testing.T) {
	g := play(t)
	var cause atomic.Value
	g.jobs = []any{job(1, nil), job(2, fields{"job": "job-1"})}
	g.until(g.worker(func(ctx context.Context, job *Job) (any, error) {
		if job.Token == 1 {
			<-ctx.Done()
			cause.Store(context.Cause(ctx))
			return nil, job.Progress()
		}
		g.eventually(func() bool { return len(g.of("beat")) > 1 && cause.Load() != nil })
		return nil, nil
	}, Rules{}), g.settled(1))
	g.equal(cause.Load(), error(ErrLost))
	settles := g.entries("settle")
	g.equal([]any{len(settles), settles[0]["token"]}, []any{1, 2.0})
	for _, beat := range g.of("beat") {
		if running := beat["running"].([]any); len(running) > 0 {
			g.equal(running, []any{[]any{"job-1", 2.0, "claim-2"}})
		}
	}
}

func TestBeatsAtOnceWhenItIsToldTo(t *testing.T) {
	g := play(t)
	g.answers["hello"] = func(map[string]any) any { return fields{"beat_every_ms": 60_000} }
	g.answers["beat"] = func(map[string]any) any { return fields{"now": "x", "cancel": []string{"job-1"}} }
	g.jobs = []any{job(1, nil)}
	w := g.worker(func(ctx context.Context, _ *Job) (any, error) {
		subject := fmt.Sprintf("tenure.jobs.w.%s.to.%s", g.queue, g.of("hello")[0]["worker"])
		if _, err := g.nc.Request(subject, nil, time.Second); err != nil {
			g.Error("a probe was not answered: ", err)
		}
		_ = g.nc.Publish(subject, []byte(`{"event": "other"}`))
		_ = g.nc.Publish(subject, []byte(`{"event": "look", "jobs": ["job-1"]}`))
		<-ctx.Done()
		told, err := g.nc.Request(subject, []byte("drain"), time.Second)
		if err != nil {
			return nil, err
		}
		g.equal(string(told.Data), `{"running":1,"was_draining":false}`)
		return nil, ctx.Err()
	}, Rules{})
	if err := w.Serve(context.Background()); err != nil {
		t.Fatal(err)
	}
	g.equal([]any{g.entries("settle")[0]["outcome"], len(g.of("goodbye"))}, []any{"cancel", 1})
}

func TestStopsInOrder(t *testing.T) {
	g := play(t)
	g.jobs = []any{job(1, nil)}
	var w *Worker
	takes := g.answers["take"]
	var isStopping atomic.Bool
	g.answers["take"] = func(body map[string]any) any {
		if len(g.of("take")) == 1 {
			return takes(body)
		}
		// The answer that is on its way at the stop brings a job.
		g.eventually(isStopping.Load)
		return fields{"jobs": []any{job(2, nil)}, "waited_ms": 20}
	}
	w = g.worker(func(ctx context.Context, job *Job) (any, error) {
		if job.Token == 2 {
			g.Error("it began")
		}
		g.eventually(func() bool { return len(g.of("take")) > 1 })
		w.Stop()
		isStopping.Store(true)
		<-ctx.Done()
		g.equal(context.Cause(ctx), error(ErrShutdown))
		// A job is not given back while its handler runs on.
		time.Sleep(500 * time.Millisecond)
		g.equal(len(g.entries("settle")), 1)
		return nil, ctx.Err()
	}, Rules{})
	if err := w.Serve(context.Background()); err != nil {
		t.Fatal(err)
	}
	settles := g.entries("settle")
	g.equal([]any{settles[0]["token"], settles[0]["outcome"], settles[0]["began"]}, []any{2.0, "release", false})
	g.equal([]any{settles[1]["token"], settles[1]["outcome"], settles[1]["began"]}, []any{1.0, "release", true})
	g.equal(g.asked[len(g.asked)-1].name, "goodbye")
	g.equal(g.of("beat")[len(g.of("beat"))-1]["draining"], true)
}

func TestEndsWhatTakesTooLongAndReportsForTheSilent(t *testing.T) {
	g := play(t)
	g.jobs = []any{job(1, fields{"stale_after_ms": 600})}
	g.until(g.worker(func(ctx context.Context, _ *Job) (any, error) {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}, Rules{Timeout: 500 * time.Millisecond, Keepalive: true}), g.settled(1))
	settle := g.entries("settle")[0]
	g.equal([]any{settle["outcome"], settle["error"]}, []any{"retry", "it ran longer than the 500ms that its kind allows"})
	g.equal(len(g.entries("report")) >= 3, true)
}

func TestThatIsCutOffGivesItsJobBackWhenItCan(t *testing.T) {
	g := play(t)
	var isAway atomic.Bool
	for name, answer := range g.answers {
		g.answers[name] = func(body map[string]any) any {
			if isAway.Load() {
				return refusal(true)
			}
			return answer(body)
		}
	}
	g.jobs = []any{job(1, fields{"stale_after_ms": 500})}
	g.until(g.worker(func(ctx context.Context, _ *Job) (any, error) {
		isAway.Store(true)
		<-ctx.Done()
		time.AfterFunc(300*time.Millisecond, func() { isAway.Store(false) })
		return nil, ctx.Err()
	}, Rules{}), func() bool { return g.has("the attempt is settled") })
	settles := g.entries("settle")
	g.equal([]any{g.has("the handler is asked to stop: cut off"), settles[len(settles)-1]["outcome"]}, []any{true, "release"})
}

func TestSaysHelloAgainWhenItsRowIsLost(t *testing.T) {
	g := play(t)
	settle := g.answers["settle"]
	g.answers["settle"] = func(body map[string]any) any {
		if len(g.of("settle")) == 1 {
			return text(`{"error": {"code": "hello_first", "message": "no row", "retry": true}}`)
		}
		return settle(body)
	}
	g.jobs = []any{job(1, nil)}
	g.until(g.worker(echo, Rules{}), func() bool { return g.has("the attempt is settled") })
	g.equal([]int{len(g.of("hello")), len(g.of("settle"))}, []int{2, 2})
}

func TestGoesOnWithAnotherGatewayThanOneThatIsFrozen(t *testing.T) {
	g := play(t)
	var frozenAt time.Time
	g.answers["hello"] = func(map[string]any) any {
		g.mu.Lock()
		g.jobs = []any{job(1, nil)}
		g.mu.Unlock()
		g.address.Store("two")
		frozenAt = time.Now()
		return fields{"beat_every_ms": 200, "report_every_ms": 50, "take_slots_max": 1000, "checkpoint_bytes_max": 1 << 20}
	}
	g.until(g.worker(echo, Rules{}), func() bool { return g.has("the attempt is settled") })
	g.equal(time.Since(frozenAt) < 4*time.Second, true)
}

func TestStopsBeforeAnyGatewayOrNATSHasAnswered(t *testing.T) {
	g := play(t)
	for _, url := range []string{g.url, "nats://127.0.0.1:9"} {
		w := NewWorker(WorkerOptions{Connection: Connection{URL: url, Log: slog.New(g)}, Queue: "unserved"})
		w.Handle("known", echo, Rules{})
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		began := time.Now()
		if err := w.Serve(ctx); err != nil || time.Since(began) > 2*time.Second {
			t.Error(url, err, time.Since(began))
		}
		cancel()
	}
}

func TestAHelloThatIsRefusedEndsWithTheReason(t *testing.T) {
	g := play(t)
	g.answers["hello"] = func(map[string]any) any { return refusal(false) }
	var reason *ProtocolError
	if err := g.worker(echo, Rules{}).Serve(context.Background()); !errors.As(err, &reason) {
		t.Error(err)
	}
	g.equal(reason, &ProtocolError{Code: "bad_request", Message: "that is wrong"})
	if err := NewWorker(WorkerOptions{Queue: "q"}).Serve(context.Background()); err == nil {
		t.Error("a worker without a handler serves")
	}
}

func (g *gateway) client() *Client {
	client, err := Connect(context.Background(), Connection{URL: g.url, Log: slog.New(g)})
	if err != nil {
		g.Fatal(err)
	}
	g.Cleanup(client.Close)
	return client
}

func TestAProducerRepeatsAnEnqueueWithTheSameKey(t *testing.T) {
	g, ctx := play(t), context.Background()
	g.answers["enqueue"] = func(map[string]any) any {
		if len(g.of("enqueue")) < 3 {
			return refusal(true)
		}
		return fields{"job": "a", "created": true}
	}
	enqueued, err := g.client().Enqueue(ctx, g.queue, Request{
		Kind: "known", Payload: fields{"doc": 7}, Delay: 1200 * time.Microsecond, RunAt: time.Unix(0, 0), Priority: -1,
	})
	g.equal([]any{enqueued, err}, []any{Enqueued{"a", true}, nil})
	asked := g.of("enqueue")
	g.equal([]any{len(asked), asked[0]}, []any{3, asked[2]})
	g.equal(len(asked[0]["key"].(string)), 32)
	delete(asked[0], "key")
	g.equal(asked[0], map[string]any{
		"v": 1.0, "kind": "known", "payload": map[string]any{"doc": 7.0}, "delay_ms": 1.0, "run_at": "1970-01-01T00:00:00Z",
		"priority": -1.0,
	})
}

func TestAProducerWaitsAndCancels(t *testing.T) {
	g, ctx := play(t), context.Background()
	client := g.client()
	seen := fields{"job": "a", "status": "queued", "output": nil, "output_omitted": true, "last_error": "e", "ended": false}
	g.answers["job"] = func(map[string]any) any { return seen }
	g.answers["wait"] = func(map[string]any) any { return merge(seen, fields{"ended": len(g.of("wait")) == 2}) }
	g.answers["cancel"] = func(map[string]any) any { return fields{"cancelled": false, "asked": true} }
	state, err := client.Job(ctx, g.queue, "a")
	g.equal([]any{state, err}, []any{State{Job: "a", Status: "queued", OutputOmitted: true, LastError: "e"}, nil})
	state, err = client.Wait(ctx, g.queue, "a")
	g.equal([]any{state.Ended, err, g.of("wait")[1]["wait_ms"]}, []any{true, nil, 20_000.0})
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	state, err = client.Wait(short, g.queue, "a")
	g.equal([]any{state.Job, err}, []any{"a", context.DeadlineExceeded})
	cancelled, err := client.Cancel(ctx, g.queue, "a")
	g.equal([]any{cancelled, err}, []any{false, nil})
}

func TestAProducersRequestEnds(t *testing.T) {
	g, ctx := play(t), context.Background()
	client := g.client()
	g.answers["enqueue"] = func(map[string]any) any { return refusal(true) }
	g.answers["job"] = func(map[string]any) any { return refusal(false) }
	_, err := client.Enqueue(ctx, g.queue, Request{Kind: "known", Payload: strings.Repeat("x", 1<<20)})
	if err == nil || !strings.Contains(err.Error(), "a message of NATS holds at most 1048576") {
		t.Error(err)
	}
	var reason *ProtocolError
	if _, err = client.Job(ctx, g.queue, "a"); !errors.As(err, &reason) {
		t.Error(err)
	}
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	_, err = client.Enqueue(short, g.queue, Request{Kind: "known"})
	g.equal(err, context.DeadlineExceeded)
	client.Close()
	_, err = client.Job(ctx, g.queue, "a")
	g.equal(err, errClosed)
}
