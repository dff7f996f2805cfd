// Command tracers is a faulty tracer, for tests of Tare. Its arguments are the name of a fault and the command of a
// good tracer, which it runs, and whose events it alters. Tare's counts must show this fault and no other:
//
//	drop     leaves out every 1,000th event, and does not report it
//	more     delivers every 1,000th event twice
//	late     delivers every event a second and a half late
//	boast    reports 100 lost events that it did not lose
//	die      ends with an error at its 1,000th event
//	flood    floods its standard error with binary data without an end of a line
//	stop     stops the good tracer for 2 s (SIGSTOP) after 1,000 events, so that it loses events, and reports it
//	lose=P   leaves out each event with the probability P, and does not report it
//	work=D   uses the CPU for the time D on each event, and delivers all events
//
// work and lose can be combined, as in work=200us,lose=1e-4.
package main

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	each  = 1000                    // faults alter every 1,000th event, or begin at it
	later = 1500 * time.Millisecond // delay of fault late
	held  = 2 * time.Second         // how long fault stop stops the good tracer
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: tracers drop|more|late|boast|die|flood|stop|lose=P|work=D COMMAND...")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(fault string, command []string) error {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGINT) // ignored: the good tracer gets it, too, and this one ends then
	good := exec.Command(command[0], command[1:]...)
	good.Stderr = os.Stderr
	good.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	events, err := good.StdoutPipe()
	if err != nil {
		return err
	}
	if err := good.Start(); err != nil {
		return err
	}
	out := bufio.NewWriterSize(os.Stdout, 64<<10)
	switch fault {
	case "late":
		err = deliverLate(events, out)
	default:
		err = deliver(fault, good.Process, bufio.NewReaderSize(events, 1<<20), out)
	}
	if err != nil {
		return err
	}
	if err := out.Flush(); err != nil {
		return err
	}
	if fault == "boast" {
		fmt.Fprintln(os.Stderr, "Lost 60 events")
		fmt.Fprintln(os.Stderr, "Lost 40 events")
	}
	return good.Wait()
}

// deliver passes events on, altered by the fault.
func deliver(fault string, good *os.Process, events *bufio.Reader, out *bufio.Writer) error {
	var probability float64
	var work time.Duration
	for part := range strings.SplitSeq(fault, ",") {
		var err error
		switch name, amount, _ := strings.Cut(part, "="); name {
		case "lose":
			probability, err = strconv.ParseFloat(amount, 64)
		case "work":
			work, err = time.ParseDuration(amount)
		}
		if err != nil {
			return err
		}
	}
	for n := 1; ; n++ {
		line, err := events.ReadSlice('\n')
		if err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
		times := 1
		if n%each == 0 {
			switch fault {
			case "drop":
				times = 0
			case "more":
				times = 2
			case "die":
				return fmt.Errorf("out of ideas after %d events", n)
			}
		}
		if work > 0 {
			spend(work)
		}
		switch {
		case rand.Float64() < probability:
			times = 0
		case fault == "flood" && n == 1:
			go flood()
		case fault == "stop" && n == each:
			if err := good.Signal(syscall.SIGSTOP); err != nil {
				return err
			}
			time.AfterFunc(held, func() { _ = good.Signal(syscall.SIGCONT) }) // it may have been killed
		}
		for range times {
			if _, err := out.Write(line); err != nil {
				return err
			}
		}
		if events.Buffered() == 0 {
			if err := out.Flush(); err != nil {
				return err
			}
		}
	}
}

// spend uses CPU time of this thread. Time in which the thread did not run does not count.
func spend(work time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	used := func() time.Duration {
		var t unix.Timespec
		if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
			return work
		}
		return time.Duration(t.Nano())
	}
	for end := used() + work; used() < end; {
	}
}

// piece is some output of the good tracer, with the time when it arrived.
type piece struct {
	text []byte
	at   time.Time
}

// deliverLate passes events on, each delayed by the constant later.
func deliverLate(events io.Reader, out *bufio.Writer) error {
	pieces := make(chan piece, 1<<16)
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(pieces)
		for {
			text := make([]byte, 32<<10)
			n, err := events.Read(text)
			if n > 0 {
				pieces <- piece{text[:n], time.Now()}
			}
			if err != nil {
				return
			}
		}
	})
	defer reading.Wait()
	for p := range pieces {
		time.Sleep(time.Until(p.at.Add(later)))
		if _, err := out.Write(p.text); err != nil {
			return err
		}
		if err := out.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// flood writes random bytes, but no line feed, to the standard error until that fails.
func flood() {
	garbage := make([]byte, 64<<10)
	for {
		for i := range garbage {
			if garbage[i] = byte(rand.Uint32()); garbage[i] == '\n' {
				garbage[i] = 0
			}
		}
		if _, err := os.Stderr.Write(garbage); err != nil {
			return
		}
		time.Sleep(time.Millisecond) // 64 MB/s
	}
}
