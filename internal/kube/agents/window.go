package agents

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http/httptrace"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"tare/internal/lib/pace"
	"tare/internal/scale/ledger"
	"tare/internal/scale/remote"
)

// Bounds on a window of many nodes.
const (
	atATime       = 64               // concurrent connection attempts
	readAtATime   = 8                // ledgers in memory, each of up to 64 MiB of text
	connectWithin = 10 * time.Second // to reach a node's agent and read its clock
	answerWithin  = 15 * time.Second // after the end of the window, plus the lead
	clockReadings = 5
	askBefore     = 45 * time.Second // agents are asked no earlier before the window; they accept up to a minute
	// How long before the window the agents are asked for it, so that all can be reached in time: the largest of a
	// constant plus a time per agent, a multiple of the slowest clock reading, and a fraction of the total time of all
	// readings divided by atATime. Asking the agents takes about 1/clockReadings of that quotient, or more on a machine
	// with little CPU time.
	lead, leadOfEach, leadOfSlowest, leadOfReadings = time.Second, time.Millisecond, 2, 0.6
)

// Window is a window that all agents take at the same time.
type Window struct {
	Start, End time.Time                // by this machine's clock
	Offsets    map[string]time.Duration // by node: how far its clock is ahead of this machine's
	Answers    <-chan Answer
}

// Answer is one node's answer to a request for a window.
type Answer struct {
	Node   string
	Ledger *ledger.Ledger // nil if it failed
	Failed string         // why it failed
	// Offset is the node's clock minus this machine's. The true offset differs from it by at most Uncertainty.
	Offset, Uncertainty time.Duration
}

// reached is an agent whose clock has been read.
type reached struct {
	Answer
	agent *remote.Agent
	took  time.Duration // total time of the readings of its clock
	begin atomic.Int64  // beginning of its window, by this machine's clock in nanoseconds; 0 before it is asked
	asked atomic.Bool   // the request for a window has got a connection
}

var (
	errEnded = errors.New("the connection to its agent has ended: the agent was stopped, or the node is cut off")
	errLate  = errors.New("it was asked too late for the window: this machine has too little CPU time")
)

// Open measures how far each agent's clock is ahead of this machine's, and then asks all of them for one window that
// lasts d. Each agent answers once on Answers, which is then closed; the reader must read all answers. The wait for
// each agent is bounded by the constants above and by the context.
func (c *Cluster) Open(ctx context.Context, agents []Agent, d time.Duration) *Window {
	return c.OpenAfter(ctx, agents, 0, d)
}

// OpenAfter is like Open, but the window begins later, by the given time.
func (c *Cluster) OpenAfter(ctx context.Context, agents []Agent, after, d time.Duration) *Window {
	return openWindow(ctx, agents, after, d, &c.Access, c.dial)
}

func openWindow(ctx context.Context, agents []Agent, after, d time.Duration, access *Access,
	dial func(context.Context, *Agent) (net.Conn, error),
) *Window {
	all := make([]reached, len(agents))
	reading := make(chan struct{}, readAtATime)
	var connecting errgroup.Group
	connecting.SetLimit(atATime)
	for i := range agents {
		a := &agents[i]
		all[i].Node = a.Node
		if all[i].Failed = a.Failed; a.Failed != "" {
			continue
		}
		connecting.Go(func() error {
			r := &all[i]
			o := access.options(net.JoinHostPort("localhost", strconv.Itoa(a.Port)))
			if a.temporary {
				o = remote.Options{Address: o.Address}
			}
			o.Reading = reading
			o.Dial = func(ctx context.Context) (net.Conn, error) {
				// The HTTP client reconnects if the connection has ended. An agent that is asked before the window begins can
				// still take it. If the connection ends later, the agent has restarted.
				switch begin := r.begin.Load(); {
				case begin == 0 || time.Now().UnixNano() < begin:
					return dial(ctx, a)
				case r.asked.Load():
					return nil, errEnded
				}
				return nil, errLate
			}
			r.connect(ctx, a, o)
			return nil
		})
	}
	_ = connecting.Wait()
	answers := make(chan Answer)
	var slowest, sum time.Duration // slowest reading of a clock; total of all readings
	for i := range all {
		if r := &all[i]; r.Failed == "" {
			slowest = max(slowest, 2*r.Uncertainty)
			sum += r.took
		}
	}
	ahead := max(lead+time.Duration(len(all))*leadOfEach, leadOfSlowest*slowest,
		time.Duration(leadOfReadings/atATime*float64(sum)))
	w := &Window{Start: time.Now().Add(ahead + after), Offsets: map[string]time.Duration{}, Answers: answers}
	w.End = w.Start.Add(d)
	ctx, cancel := context.WithDeadline(ctx, w.End.Add(answerWithin+ahead))
	var asking sync.WaitGroup
	for i := range all {
		if all[i].Failed == "" {
			w.Offsets[all[i].Node] = all[i].Offset
		}
		asking.Go(func() {
			r := &all[i]
			if r.Failed == "" {
				r.begin.Store(w.Start.UnixNano())
				ctx := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
					GotConn: func(httptrace.GotConnInfo) { r.asked.Store(true) },
				})
				_ = pace.Sleep(ctx, time.Until(w.Start.Add(-askBefore))) // the request fails if ctx has ended
				l, err := r.agent.At(ctx, w.Start.Add(r.Offset), d)
				if err != nil {
					r.Failed = reason(err)
				}
				r.Ledger = l
			}
			answers <- r.Answer
			r.Ledger = nil
			if r.agent != nil {
				_ = r.agent.Close()
			}
		})
	}
	go func() {
		asking.Wait()
		cancel()
		close(answers)
	}()
	return w
}

// connect connects to an agent and reads its clock several times. The fastest reading is the most accurate.
func (r *reached) connect(ctx context.Context, a *Agent, o remote.Options) {
	ctx, cancel := context.WithTimeout(ctx, connectWithin)
	defer cancel()
	var err error
	if r.agent, err = remote.New(o); err != nil {
		r.Failed = reason(err)
		return
	}
	var last error // the last error before the time was over
	for i := 0; i < clockReadings; {
		asked := time.Now()
		offset, uncertainty, err := r.agent.Clock(ctx)
		switch {
		case err == nil:
			r.took += time.Since(asked)
			if i == 0 || uncertainty < r.Uncertainty {
				r.Offset, r.Uncertainty = offset, uncertainty
			}
			i++
		case a.starting && ctx.Err() == nil:
			last = err
			_ = pace.Sleep(ctx, 200*time.Millisecond) // the next reading fails once ctx has ended
		default:
			r.Failed = reason(cmp.Or(last, err))
			return
		}
	}
}
