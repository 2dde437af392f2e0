package tenure

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// answeredWithin is how long to wait for an answer, besides the time that the request itself asks to wait.
const answeredWithin = 5 * time.Second

const (
	// keptFor is how long requests go to one gateway, before another may get them: load spreads over new ones, too.
	keptFor = 30 * time.Second
	// anyFor is how long requests go to any gateway when none has answered a ping.
	anyFor = 2 * time.Second
	// pingEvery is how often a gateway is pinged for which a request waits, and pongWithin how long it has to answer.
	pingEvery  = 500 * time.Millisecond
	pongWithin = time.Second
)

var (
	// findWithin is how long each ping waits that looks for a gateway. Each goes to any: the next one may answer.
	findWithin = []time.Duration{pongWithin / 4, pongWithin / 4, pongWithin / 2, pongWithin / 2, pongWithin}
	ping       = []byte(`{"v":1}`)
	errSilent  = errors.New("the gateway does not answer; another one is asked")
)

// Connection says where NATS is, and how to reach it.
type Connection struct {
	// URL is such as nats://user:password@host:4222 or tls://token@host; several with commas between.
	URL string
	// Prefix is the subject prefix of the tenure, "jobs" by default.
	Prefix string
	// InboxPrefix is that of the subjects of answers, if the NATS user may not subscribe to _INBOX.>.
	InboxPrefix string
	// NATS are further options, such as nats.RootCAs or nats.UserCredentials.
	NATS []nats.Option
	// Log is slog.Default() by default.
	Log *slog.Logger
}

// wire is a connection to NATS, and the requests over it. Each may be repeated; so a lost answer is no error.
type wire struct {
	nc     *nats.Conn
	prefix string
	log    *slog.Logger

	finding sync.Mutex
	kept    *target
}

// target is the gateway that gets the requests. at is what its address adds to their subjects; empty: any gateway.
type target struct {
	at    string
	until time.Time
	// waiting counts the requests that it has not answered.
	waiting atomic.Int32
	lost    context.Context
	lose    context.CancelFunc
}

func newTarget(at string, kept time.Duration) *target {
	to := &target{at: at, until: time.Now().Add(kept)}
	to.lost, to.lose = context.WithCancel(context.Background())
	return to
}

func (t *target) isKept() bool { return time.Now().Before(t.until) && t.lost.Err() == nil }

// dial connects. It tries again until the context is done, but not if NATS refuses the user or the URL is none.
func dial(ctx context.Context, to Connection) (*wire, error) {
	log := to.Log
	if log == nil {
		log = slog.Default()
	}
	options, err := optionsOf(to, log)
	if err != nil {
		return nil, err
	}
	prefix := to.Prefix
	if prefix == "" {
		prefix = "jobs"
	}
	var nc *nats.Conn
	err = repeat(ctx, log, func() (err error) {
		nc, err = connect(ctx, options)
		var noURL *url.Error
		if err == nil || errors.Is(err, nats.ErrAuthorization) || errors.As(err, &noURL) || ctx.Err() != nil {
			return err
		}
		return unanswered{fmt.Errorf("NATS cannot be reached: %w", err)}
	})
	return &wire{nc: nc, prefix: "tenure." + prefix, log: log}, err
}

// connect is nats.Options.Connect, but ends with the context: a host that is silent may take long.
func connect(ctx context.Context, options nats.Options) (*nats.Conn, error) {
	type result struct {
		nc  *nats.Conn
		err error
	}
	connected := make(chan result, 1)
	go func() {
		nc, err := options.Connect()
		connected <- result{nc, err}
	}()
	select {
	case got := <-connected:
		return got.nc, got.err
	case <-ctx.Done():
		go func() {
			if late := <-connected; late.err == nil {
				late.nc.Close()
			}
		}()
		return nil, context.Cause(ctx)
	}
}

func optionsOf(to Connection, log *slog.Logger) (nats.Options, error) {
	own := []nats.Option{
		nats.Name("tenure"),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(),
		nats.ReconnectWait(250 * time.Millisecond),
		// A connection that is silently dead is found within half a minute.
		nats.PingInterval(10 * time.Second),
		nats.Timeout(5 * time.Second),
		// A request that is kept until NATS is back would arrive after the worker has given it up.
		nats.ReconnectBufSize(-1),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { log.Error("NATS says: " + err.Error()) }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				log.Warn("the connection to NATS broke; it is made again", "error", err)
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) { log.Info("connected to NATS again") }),
	}
	if to.InboxPrefix != "" {
		own = append(own, nats.CustomInboxPrefix(to.InboxPrefix))
	}
	options := nats.GetDefaultOptions()
	options.Url = to.URL
	for _, set := range append(own, to.NATS...) {
		if err := set(&options); err != nil {
			return options, err
		}
	}
	return options, nil
}

// once sends a request once, and reads the answer. It returns the reply subject of the answer, if it has one.
func (w *wire) once(ctx context.Context, subject string, body []byte, within time.Duration, into any) (string, error) {
	if w.nc.IsClosed() {
		return "", errClosed
	}
	if most := w.nc.MaxPayload(); int64(len(body)) > most {
		return "", fmt.Errorf("tenure: %s: the request has %d bytes, but a message of NATS holds at most %d (max_payload)",
			subject, len(body), most)
	}
	lost := func(err error) (string, error) { return "", unanswered{fmt.Errorf("%s: %w", subject, err)} }
	if !w.nc.IsConnected() {
		return lost(nats.ErrDisconnected)
	}
	to, message, err := w.send(ctx, subject, body, within)
	if err != nil && ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if err != nil {
		return lost(err)
	}
	var answer struct {
		OK    json.RawMessage `json:"ok"`
		Error *ProtocolError  `json:"error"`
	}
	if err := json.Unmarshal(message.Data, &answer); err != nil {
		return lost(err)
	}
	if answer.Error != nil && answer.Error.Code == "unknown_request" && to.at != "" {
		// By an older gateway, which gets what is meant for others, too.
		w.finding.Lock()
		w.kept = newTarget("", keptFor)
		w.finding.Unlock()
		return lost(answer.Error)
	}
	if answer.Error != nil {
		// It may be this gateway's trouble alone: what follows goes to the next one that is found.
		if answer.Error.Code == "unavailable" && to.at != "" {
			w.forget(to)
		}
		return "", answer.Error
	}
	if err := json.Unmarshal(answer.OK, into); err != nil {
		return lost(err)
	}
	return message.Reply, nil
}

// send sends a request to the gateway that is kept, or to another one if that has stopped.
func (w *wire) send(ctx context.Context, subject string, body []byte, within time.Duration) (*target, *nats.Msg, error) {
	for again := true; ; again = false {
		to, err := w.find(ctx, subject[:strings.LastIndex(subject, ".")])
		if err != nil {
			return nil, nil, err
		}
		message, err := w.request(ctx, to, subject, body, within)
		if !errors.Is(err, nats.ErrNoResponders) || to.at == "" {
			return to, message, err
		}
		to.lose()
		if !again {
			return to, message, err
		}
	}
}

// request sends a request to a gateway. It is over once the gateway is lost.
func (w *wire) request(ctx context.Context, to *target, subject string, body []byte, within time.Duration) (*nats.Msg, error) {
	limited, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	defer context.AfterFunc(to.lost, cancel)()
	to.waiting.Add(1)
	defer to.waiting.Add(-1)
	message, err := w.nc.RequestWithContext(limited, w.prefix+"."+subject+to.at, body)
	if err != nil && to.lost.Err() != nil {
		err = errSilent
	}
	return message, err
}

// find returns the gateway that requests go to, or any, if none can be told from the others.
func (w *wire) find(ctx context.Context, of string) (*target, error) {
	w.finding.Lock()
	defer w.finding.Unlock()
	if w.kept != nil && w.kept.isKept() {
		return w.kept, nil
	}
	for _, within := range findWithin {
		limited, cancel := context.WithTimeout(ctx, within)
		message, err := w.nc.RequestWithContext(limited, w.prefix+"."+of+".ping", ping)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			continue
		} else if err != nil {
			return nil, err
		}
		var answer struct {
			OK struct {
				Gateway string `json:"gateway"`
			} `json:"ok"`
		}
		if err := json.Unmarshal(message.Data, &answer); err != nil {
			return nil, err
		}
		// An older gateway knows no pings.
		w.kept = newTarget("", keptFor)
		if answer.OK.Gateway != "" {
			w.kept.at = "@" + answer.OK.Gateway
			go w.watch(w.kept, of)
		}
		return w.kept, nil
	}
	w.kept = newTarget("", anyFor)
	return w.kept, nil
}

// forget has the requests that follow sent to a gateway that is found anew.
func (w *wire) forget(to *target) {
	w.finding.Lock()
	defer w.finding.Unlock()
	if w.kept == to {
		w.kept = nil
	}
}

// watch pings a gateway while requests wait for it: one that is frozen keeps its subscriptions.
func (w *wire) watch(to *target, of string) {
	for (to.isKept() || to.waiting.Load() > 0) && to.lost.Err() == nil && !w.nc.IsClosed() {
		time.Sleep(pingEvery)
		if to.waiting.Load() == 0 {
			continue
		}
		askedAt := time.Now()
		limited, cancel := context.WithTimeout(context.Background(), pongWithin)
		_, err := w.nc.RequestWithContext(limited, w.prefix+"."+of+".ping"+to.at, ping)
		cancel()
		// Otherwise this process was frozen.
		if err != nil && time.Since(askedAt) < pongWithin+pingEvery {
			w.log.Warn(errSilent.Error(), "error", err)
			to.lose()
		}
	}
}

// repeat repeats a step until it is answered, or the context is done.
func repeat(ctx context.Context, log *slog.Logger, step func() error) error {
	for wait := firstPause; ; {
		err := step()
		if err == nil || !mayRepeat(err) {
			return err
		}
		log.Warn("no answer; the request is repeated", "error", err)
		if err := wait.next(ctx); err != nil {
			return err
		}
	}
}

// pause is the next of the pauses between repetitions.
type pause time.Duration

const (
	firstPause = pause(100 * time.Millisecond)
	lastPause  = pause(5 * time.Second)
)

// next waits, and doubles the pause.
func (p *pause) next(ctx context.Context) error {
	jittered := time.Duration(float64(*p) * (0.5 + rand.Float64()/2))
	*p = min(*p*2, lastPause)
	select {
	case <-time.After(jittered):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// fields are those of a JSON object.
type fields map[string]any

// encode writes JSON as a gateway reads it: as short as it can be, and valid Unicode even if a handler's is not.
func encode(value any) (json.RawMessage, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return bytes.ToValidUTF8(bytes.TrimSuffix(text.Bytes(), []byte("\n")), []byte("\uFFFD")), nil
}
