package privilege

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"tare/test/binary"
	"tare/test/long"
)

// These values say what a process of this test binary does repeatedly, while a goroutine enters a system call that
// blocks.
const (
	again     = "again"     // gives up its privileges
	unwatched = "unwatched" // makes one of the same system calls in all threads, without the watch
)

const rounds = 3000

// stopOften stops this process often: it gives up privileges or, without the watch, only sets no_new_privs. It prints a
// line each time.
func stopOften(what string) error {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	enter, left := make(chan struct{}), make(chan error)
	go func() {
		for range enter {
			_, err := unix.Read(pipe[0], make([]byte, 1))
			left <- err
		}
	}()
	for round := range rounds {
		enter <- struct{}{}
		for end := time.Now().Add(time.Duration(round%100) * time.Microsecond); time.Now().Before(end); {
		}
		var err error
		if what == again {
			err = Drop()
		} else {
			_, err = cap.Prctlw(prSetNoNewPrivs, 1)
		}
		if err != nil {
			return err
		}
		if _, err := unix.Write(pipe[1], []byte{0}); err != nil {
			return err
		}
		if err := <-left; err != nil {
			return err
		}
		fmt.Println(round)
	}
	return nil
}

// TestWatched: a stop of the process soon ends, even if it meets a thread on its way into a system call. Without the
// watch, it would take a minute. The test builds a Go runtime in which that way takes longer. Once the second half of
// the test fails with a new version of Go, watched is no longer needed.
func TestWatched(t *testing.T) {
	long.Test(t, "3 min: builds Go's runtime, and has it hang for 30 s")
	program := slowEntry(t)
	if round, hung := hangs(t, program, again); hung {
		t.Errorf("it hung when it gave up its privileges for the %dth time", round+1)
	}
	round, hung := hangs(t, program, unwatched)
	if !hung {
		t.Errorf("nothing hangs without the watch, %d times", round)
	}
	t.Logf("without the watch it hung after %d times", round)
}

// slowEntry builds this test with a Go runtime in which a thread pauses for 20 µs after it has checked whether the
// process is being stopped, and before it marks itself as being in a system call.
func slowEntry(t *testing.T) string {
	t.Helper()
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	goroot, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	source := filepath.Join(strings.TrimSpace(string(goroot)), "src/runtime/proc.go")
	text, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	const between = "\t// As soon as we switch to _Gsyscall, we are in danger of losing our P.\n"
	slow := strings.Replace(string(text), between, "\tfor t := nanotime(); nanotime()-t < 20_000; {\n\t}\n"+between, 1)
	if slow == string(text) {
		t.Fatalf("%s is not as it was: see whether its reentersyscall still looks at gcwaiting first", source)
	}
	dir := t.TempDir()
	proc, overlay, program := filepath.Join(dir, "proc.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "test")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{source: proc}})
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{proc: slow, overlay: string(replace)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay", overlay, "-o", program,
		"./internal/lib/privilege")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// hangs runs a process that stops often, and returns how often it did and whether it then hung. It kills a process that
// hangs.
func hangs(t *testing.T, program, what string) (round int, hung bool) {
	t.Helper()
	const hang = 30 * time.Second // without the watch it takes at least a minute
	ctx, kill := context.WithCancel(t.Context())
	defer kill()
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), asked+"="+what, "GOMAXPROCS=2")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	watch := time.AfterFunc(hang, kill)
	var last string
	for lines := bufio.NewScanner(out); lines.Scan(); round++ {
		last = lines.Text()
		watch.Reset(hang)
	}
	err = cmd.Wait()
	hung = ctx.Err() != nil
	if !hung && (err != nil || round != rounds) {
		t.Fatalf("it ended after %d times: %v: %s", round, err, last)
	}
	return round, hung
}
