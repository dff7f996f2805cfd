package process

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
	"tare/internal/lib/text"
)

// A command without conditions that listens on no port counts as ready once it has run for the time settled.
const settled = 500 * time.Millisecond

// condition is one condition under which a command is ready.
type condition struct {
	given bool          // it was configured
	what  string        // completes "was not ready within 30s: "
	every time.Duration // between two checks
	// holds reports whether the condition holds; if it does not, the error gives the reason, or is nil.
	holds func(context.Context) (bool, error)
}

// conditions returns the conditions of the command in the order in which they are awaited.
func (r *Running) conditions() []condition {
	c := r.command.Ready
	var since time.Time // when Ready.After began to count
	given := slices.DeleteFunc([]condition{
		{c.Line != nil, fmt.Sprintf("no line that it wrote matched %q", c.Line), pause, r.sawLine},
		{c.File != "", fmt.Sprintf("there was no file %s", c.File), 2 * pause,
			func(context.Context) (bool, error) {
				_, err := os.Stat(r.command.file())
				return err == nil, nil
			}},
		{c.Port != "", fmt.Sprintf("nothing accepted connections at %s", c.Port), 2 * pause,
			func(ctx context.Context) (bool, error) { return accepts(ctx, c.Port) }},
		{c.Listen, r.silent(), 4 * pause, func(ctx context.Context) (bool, error) {
			if len(r.Listening()) > 0 || c.Offered == "" {
				return len(r.Listening()) > 0, nil
			}
			return acceptsWithin(ctx, c.Offered, offeredAttempt)
		}},
		{c.HTTP != "", fmt.Sprintf("%s was not answered with a status of 200 to 399", c.HTTP), 4 * pause,
			func(ctx context.Context) (bool, error) { return answers(ctx, c.HTTP) }},
		{c.After > 0, fmt.Sprintf("%v had not passed", c.After), pause, func(context.Context) (bool, error) {
			if since.IsZero() {
				since = time.Now()
			}
			return time.Since(since) >= c.After, nil
		}},
	}, func(c condition) bool { return !c.given })
	if len(given) > 0 {
		return given
	}
	return []condition{{true, "it had not run for long enough", 4 * pause, func(context.Context) (bool, error) {
		return r.Ran() >= settled || len(r.Listening()) > 0, nil
	}}}
}

// silent says, for an error message, that Ready.Listen did not hold.
func (r *Running) silent() string {
	if at := r.command.Ready.Offered; at != "" {
		return "it listened on no TCP port that is seen from here, and accepted no connections at " + at
	}
	return "it listened on no TCP port"
}

// file returns the path of Ready.File.
func (c Command) file() string {
	if filepath.IsAbs(c.Ready.File) {
		return c.Ready.File
	}
	return filepath.Join(c.Dir, c.Ready.File)
}

func (r *Running) sawLine(context.Context) (bool, error) {
	r.out.Lock()
	defer r.out.Unlock()
	return r.saw, nil
}

// beforehand returns an error if the working directory is not a directory, or if a condition holds before the command
// starts: such a condition would say nothing about this command.
func (c Command) beforehand() error {
	if c.Dir != "" {
		if info, err := os.Stat(c.Dir); err != nil || !info.IsDir() {
			return fault.New(fault.Usage, c.Dir, "make it, or name another", "the working directory of %s is not a directory",
				c.Name())
		}
	}
	if c.Ready.File != "" {
		if _, err := os.Lstat(c.file()); err == nil {
			return fault.New(fault.Usage, c.Ready.File, "remove it first; a command that was killed may have left it",
				"the file that shows when %s is ready exists already", c.Name())
		}
	}
	if c.Ready.Port != "" {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if ok, _ := accepts(ctx, c.Ready.Port); ok {
			return fault.New(fault.Usage, c.Ready.Port, "stop what listens there (ss -ltnp), or use {port}, a free one",
				"something accepts connections there already, before %s was started", c.Name())
		}
	}
	return nil
}

// attempt limits the time of one connection or request.
const attempt = time.Second

// offeredAttempt is the limit for an address at which the program need not listen, since other signs are checked too.
const offeredAttempt = attempt / 10

func accepts(ctx context.Context, address string) (bool, error) {
	return acceptsWithin(ctx, address, attempt)
}

func acceptsWithin(ctx context.Context, address string, limit time.Duration) (bool, error) {
	d := net.Dialer{Timeout: limit}
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return false, short(err)
	}
	_ = conn.Close() // nothing was written
	return true, nil
}

// prober sends one request per connection and follows no redirect, so it leaves no connection open to the server. It
// does not verify the server's certificate.
var prober = &http.Client{
	Timeout:       attempt,
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	Transport:     &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
}

func answers(ctx context.Context, url string) (bool, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false, err
	}
	resp, err := prober.Do(req)
	if err != nil {
		return false, short(err)
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 1<<20)
	if resp.StatusCode < 200 || resp.StatusCode > 399 {
		return false, fmt.Errorf("status %d", resp.StatusCode)
	}
	return true, nil
}

// short returns the innermost cause of a network error.
func short(err error) error {
	var system interface{ Timeout() bool }
	var errno unix.Errno
	switch {
	case errors.As(err, &errno):
		return errno
	case errors.As(err, &system) && system.Timeout():
		return errTimeout
	}
	return err
}

var errTimeout = errors.New("timeout")

// await waits for one condition.
func (r *Running) await(ctx context.Context, c condition, timeout time.Duration) error {
	tick := time.NewTicker(c.every)
	defer tick.Stop()
	var reason error
	for n := 0; ; n++ {
		select {
		case <-r.Ended(): // before the condition, which another process may satisfy
			if r.command.Finishes && r.Err() == nil {
				return nil
			}
			return r.Failure("before it was ready")
		default:
		}
		holds, err := c.holds(ctx)
		// Once the command has exited, only processes that it left behind, which are about to end, can satisfy the condition.
		if holds && !r.Exited() {
			return nil
		}
		// The last attempt may run into the deadline: then its error is less specific than earlier ones.
		if errors.Is(err, errNotReady) {
			err = errTimeout
		}
		if err != nil && (reason == nil || ctx.Err() == nil && !errors.Is(err, errTimeout)) {
			reason = err
		}
		if n%16 == 15 {
			if err := r.stopped(); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			if cause := context.Cause(ctx); !errors.Is(cause, errNotReady) {
				return cause
			}
			return r.notReady(c, timeout, reason)
		case <-r.Ended():
		case <-tick.C:
		}
	}
}

// notReady returns the error for a condition that did not hold in time.
func (r *Running) notReady(c condition, timeout time.Duration, reason error) error {
	if err := r.stopped(); err != nil {
		return err
	}
	r.out.Read() // its latest output
	cause := errors.New(c.what)
	if reason != nil {
		cause = fmt.Errorf("%s (%w)", c.what, reason)
	}
	hint := "raise its ready-timeout if it needs longer; else check the condition against what it does when you run it " +
		"by hand: " + r.command.Line()
	if at := r.Listening(); len(at) > 0 {
		hint = fmt.Sprintf("it listens at %s; %s", strings.Join(at, ", "), hint)
	}
	return r.fault(cause, hint, "was not ready within %v", timeout)
}

// stopped returns an error if a process of the command is stopped by a signal. A terminal cannot be the cause: the
// command's session has none, and then the kernel does not stop its processes (SIGTTIN and SIGTTOU of an orphaned
// process group, get_signal in kernel/signal.c).
func (r *Running) stopped() error {
	for _, p := range r.processes() {
		if p.State == 'T' {
			return r.fault(fmt.Errorf("its process %d is stopped, by SIGSTOP", p.PID),
				"something waits to let it go on: a debugger, or the command itself", "does not run")
		}
	}
	return nil
}

// terminal matches what programs print if they find no terminal: the error texts of isatty and tcgetattr (ENOTTY, and
// ENXIO for /dev/tty), and of curses.
var terminal = text.LazyRegexp(`(?i)not a (tty|terminal|typewriter)|inappropriate ioctl for device|/dev/tty\b|` +
	`no (controlling )?(tty|terminal)\b|TERM environment variable not set|error opening terminal|` +
	`requires? an? (tty|terminal|interactive)|failed tty get|` + // procps prints "failed tty get"
	`must be (run|executed|connected|attached) .{0,20}(tty|terminal)`)

// mountTracing is the hint for a tracer that does not find the kernel's tracepoints.
const mountTracing = "see whether tracefs is mounted (mount -t tracefs none /sys/kernel/tracing), and whether " +
	"this kernel has what it traces"

// advice returns a hint for a command that ended with an error, from its last output.
func (r *Running) advice() string {
	text := strings.ToLower(r.Tail())
	for _, a := range []struct{ words, hint string }{
		{"address already in use", "another process has its port: stop it (ss -ltnp), or let {port} choose a free one"},
		{"permission denied", "check the owner and mode of the files that it names, and the user that it runs as"},
		{"operation not permitted", "it may need root, or a capability that this container does not have"},
		{"tracepoint not found", mountTracing},
		{"/sys/kernel/tracing", mountTracing},
		{"/sys/kernel/debug/tracing", mountTracing},
		{"cannot allocate memory", "raise the memory limit of its group"},
	} {
		if strings.Contains(text, a.words) {
			return a.hint
		}
	}
	return "try it by hand: " + r.command.Line()
}
