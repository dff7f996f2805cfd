// Command agent weighs tare-agent itself: its CPU time and memory on a machine with many control groups, eBPF programs
// and maps, scraped at several intervals. For comparison it also weighs another exporter under the same scrapes, a
// program that shows eBPF programs on a terminal, and other builds of the agent. What a scrape costs depends on how
// fast the machine is at the time: compare within one run.
//
//	go run ./test/bench/agent -agent bin/tare-agent -other prometheus-node-exporter -terminal bpftop
//	go run ./test/bench/agent -agent /tmp/before,bin/tare-agent -other prometheus-node-exporter
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/proc"
)

var (
	agents   = flag.String("agent", "bin/tare-agent", "the agent's binary, or several with commas between")
	others   = flag.String("other", "prometheus-node-exporter", "another exporter; empty for none")
	groups   = flag.Int("groups", 300, "control groups")
	programs = flag.Int("programs", 50, "eBPF programs")
	maps     = flag.Int("maps", 100, "eBPF maps")
	shower   = flag.String("terminal", "", "a program that runs on a terminal, such as bpftop; empty for none")
	every    = flag.Duration("every", 15*time.Second, "between two scrapes")
	scrapes  = flag.Int("scrapes", 8, "that are measured, after two that are not")
)

func main() {
	flag.Parse()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	remove, err := makeGroups(*groups)
	defer remove()
	if err != nil {
		return err
	}
	objects, err := load(*programs, *maps)
	defer func() {
		for _, o := range objects {
			_ = o.Close()
		}
	}()
	if err != nil {
		return err
	}
	var commands [][]string
	for name := range strings.SplitSeq(*agents, ",") {
		commands = append(commands, []string{name, "--listen"})
	}
	if *others != "" {
		commands = append(commands, []string{*others, "--web.listen-address"})
	}
	var all []*exporter
	defer func() {
		for _, e := range all {
			e.stop()
		}
	}()
	for _, c := range commands {
		e, err := start(c[0], c[1])
		if err != nil {
			return err
		}
		all = append(all, e)
	}
	if *shower != "" {
		e, err := show(*shower)
		if err != nil {
			return err
		}
		all = append(all, e)
	}
	for i := range *scrapes + 2 {
		for j := range all {
			e := all[(i+j)%len(all)] // each takes its turn as the first, which finds the caches cold
			if err := e.scrape(); err != nil {
				return err
			}
			if i == 1 {
				e.mark()
			}
		}
		time.Sleep(*every)
	}
	for _, e := range all {
		cpu, wall, rss := e.since()
		if rss == 0 {
			return fmt.Errorf("%s has ended", e.name)
		}
		if e.url == "" {
			fmt.Printf("%-28s %7.3f %% of a CPU  %26s %5.1f MB resident\n", filepath.Base(e.name),
				100*cpu.Seconds()/wall.Seconds(), "", float64(rss)/1e6)
			continue
		}
		fmt.Printf("%-28s %7.3f %% of a CPU  %6.2f ms a scrape  %5.1f MB resident  %6.1f kB a scrape\n",
			filepath.Base(e.name),
			100*cpu.Seconds()/wall.Seconds(), 1e3*cpu.Seconds()/float64(*scrapes), float64(rss)/1e6, float64(e.bytes)/1e3)
	}
	return nil
}

type exporter struct {
	name, url string // url is empty for a program on a terminal
	cmd       *exec.Cmd
	bytes     int64
	at        time.Time
	cpu       time.Duration
}

func start(command, flag string) (*exporter, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := l.Addr().String()
	l.Close()
	e := &exporter{name: command, url: "http://" + address + "/metrics", cmd: exec.Command(command, flag+"="+address)}
	if err := e.cmd.Start(); err != nil {
		return nil, err
	}
	for range 100 {
		if e.scrape() == nil {
			return e, nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	e.stop()
	return nil, fmt.Errorf("%s serves nothing", command)
}

// show starts a program on a terminal of 80 columns and 24 lines, and reads what it draws.
func show(command string) (*exporter, error) {
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	n, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPTN)
	err = errors.Join(err, unix.IoctlSetPointerInt(int(terminal.Fd()), unix.TIOCSPTLCK, 0),
		unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}))
	if err != nil {
		return nil, err
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer tty.Close()
	e := &exporter{name: command, cmd: exec.Command(command)}
	e.cmd.Stdin, e.cmd.Stdout, e.cmd.Stderr = tty, tty, tty
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	e.cmd.Env = append(os.Environ(), "TERM=xterm")
	go func() { _, _ = io.Copy(io.Discard, terminal) }() // until the program ends
	return e, e.cmd.Start()
}

func (e *exporter) scrape() error {
	if e.url == "" {
		return nil
	}
	r, err := http.Get(e.url)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if e.bytes, err = io.Copy(io.Discard, r.Body); err == nil && r.StatusCode != http.StatusOK {
		err = errors.New(r.Status)
	}
	return err
}

func (e *exporter) mark() { e.at, e.cpu = time.Now(), e.used() }

func (e *exporter) since() (cpu, wall time.Duration, rss uint64) {
	rss, _, _ = (proc.FS{}).Resident(e.cmd.Process.Pid)
	return e.used() - e.cpu, time.Since(e.at), rss
}

func (e *exporter) used() time.Duration {
	d, _ := proc.Runtime(e.cmd.Process.Pid)
	return d
}

func (e *exporter) stop() {
	_ = e.cmd.Process.Kill()
	_ = e.cmd.Wait()
}

// makeGroups makes n control groups in every writable hierarchy, as a container runtime does.
func makeGroups(n int) (remove func(), err error) {
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		return func() {}, err
	}
	var dirs []string
	remove = func() {
		for i := range dirs {
			_ = os.Remove(dirs[len(dirs)-1-i])
		}
	}
	for _, h := range layout.Hierarchies {
		top := filepath.Join(h.Mount, fmt.Sprintf("tare-bench-%d", os.Getpid()))
		for i := range n {
			dir := top
			if i > 0 {
				dir = filepath.Join(top, fmt.Sprintf("group-%d", i))
			}
			if err := os.Mkdir(dir, 0o755); err != nil {
				if strings.Contains(err.Error(), "read-only") {
					break
				}
				return remove, err
			}
			dirs = append(dirs, dir)
		}
	}
	return remove, nil
}

func load(programs, maps int) (all []io.Closer, err error) {
	for i := range maps {
		m, err := ebpf.NewMap(&ebpf.MapSpec{Name: fmt.Sprintf("bench_%d", i), Type: ebpf.Hash, KeySize: 4, ValueSize: 64,
			MaxEntries: 1024})
		if err != nil {
			return all, err
		}
		all = append(all, m)
	}
	for i := range programs {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: fmt.Sprintf("bench_%d", i), Type: ebpf.SocketFilter, License: "GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
		if err != nil {
			return all, err
		}
		all = append(all, p)
	}
	return all, nil
}
