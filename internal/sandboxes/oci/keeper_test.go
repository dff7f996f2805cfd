package oci

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// keeper is a runtime that leaves a process running beside its container, as runtimes of virtual machines do. That
// process, and not the shim, is the parent of the container's process. The container runs a program, and ends with
// status 7.
const keeper = `#!/bin/sh
dir=$(dirname "$0")
for a; do
	case $a in create | start | state | kill | delete) what=$a ;; esac
	[ "$last" = --pid-file ] && pid=$a
	last=$a
done
case $what in
create)
	exec 3<&0
	sh -c '
		sh -c "PROGRAM exit 7" <&3 &
		echo $! >'"$dir"'/pid
		wait $!
		echo $? >'"$dir"'/status' &
	until [ -s "$dir/pid" ]; do sleep 0.01; done
	cp "$dir/pid" "$pid"
	;;
state)
	[ -s "$dir/status" ] || { echo '{"status":"running"}'; exit; }
	echo '{"status":"stopped","annotations":{"io.tare.microvm.exit_code":"'"$(cat "$dir/status")"'"}}'
	;;
kill) echo "$last" >"$dir/killed" ;;
esac
`

// TestShimOfAKeptContainer: the end of a container is noticed, with its status, even if its process is another
// process's child, and nothing is killed.
func TestShimOfAKeptContainer(t *testing.T) {
	for name, program := range map[string]string{"it ends with its input": "cat >/dev/null;", "it ends at once": ""} {
		t.Run(name, func(t *testing.T) { testKept(t, program) })
	}
}

func testKept(t *testing.T, runs string) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "keeper")
	if err := os.WriteFile(program, []byte(strings.Replace(keeper, "PROGRAM", runs, 1)), 0o755); err != nil {
		t.Fatal(err)
	}
	bundle := t.TempDir()
	j := Job{Container: Container{
		Runtime: Runtime{Name: "keeper", Argv: []string{program}}, Root: filepath.Join(bundle, "state"),
		Bundle: bundle, ID: "a",
	}}
	path, err := j.Write(bundle)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // a shim that misses the end would wait forever
	defer cancel()
	cmd := exec.CommandContext(ctx, self, j.Args(path)...)
	cmd.Stdin, cmd.WaitDelay = strings.NewReader("some input\n"), time.Minute
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("%v: %s", err, out)
	}
	times, err := ReadTimes(bundle)
	if err != nil || times.Exited == 0 || times.Deleted < times.Exited || times.Killed {
		t.Errorf("%+v, %v", times, err)
	}
	if said, err := os.ReadFile(filepath.Join(dir, "killed")); err == nil {
		t.Errorf("it was sent %s", said)
	}
}
