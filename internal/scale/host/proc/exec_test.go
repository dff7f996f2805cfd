package proc

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// restarts is set for a process that executes itself again and again, each time from a thread other than its first.
const restarts = "TARE_TEST_RESTARTS"

// headless is set for a process whose first thread ends, while others live until its input ends.
const headless = "TARE_TEST_HEADLESS"

func init() {
	switch {
	case os.Getenv(restarts) != "":
		runtime.LockOSThread() // the first thread, as this is an init function
		go func() { panic(syscall.Exec("/proc/self/exe", os.Args, os.Environ())) }()
		select {}
	case os.Getenv(headless) != "":
		runtime.LockOSThread()
		go func() {
			_, _ = os.Stdin.Read(make([]byte, 1))
			os.Exit(0)
		}()
		time.Sleep(10 * time.Millisecond)                    // the other has a thread by then
		_, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0) // ends only this thread
	}
}

// If the first thread of a process has ended, the kernel shows no memory, although the other threads have it: the
// result is an error, not 0.
func TestRollupWithoutFirstThread(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), headless+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer in.Close()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		p, err := FS{}.Process(cmd.Process.Pid)
		if err != nil || time.Now().After(end) {
			t.Fatalf("its first thread has not ended alone: %+v, %v", p, err)
		}
		if p.firstDead() {
			break
		}
	}
	if (FS{}).Ending(cmd.Process.Pid) {
		t.Error("it is said to be ending, and lives on")
	}
	if r, err := (FS{}).Rollup(cmd.Process.Pid); err == nil || errors.Is(err, ErrGone) {
		t.Errorf("%+v, %v", r, err)
	}
}

// A process that executes a program from a thread other than its first is always alive, although its first thread is
// dead for a moment.
func TestAliveWhileItExecutes(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), restarts+"=1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	began, firstDead, enough := uint64(0), 0, 1000
	if testing.Short() {
		enough = 20
	}
	for end := time.Now().Add(30 * time.Second); firstDead < enough && time.Now().Before(end); {
		p, err := FS{}.Process(cmd.Process.Pid)
		if err != nil || !p.Alive() || p.Threads == 0 || began != 0 && p.Start != began {
			t.Fatalf("%+v, %v; it began at %d", p, err, began)
		}
		began = p.Start
		if p.firstDead() {
			firstDead++
		}
	}
	if firstDead == 0 {
		t.Fatal("its first thread was never seen dead")
	}
}
