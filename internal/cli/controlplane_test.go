package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/mesh/controlplane"
)

const servicesOfOne = `services:
  - name: web
    address: 10.0.0.1:80
    endpoints: [{address: "10.1.0.1:8080"}]
`

func TestControlplaneRefuses(t *testing.T) {
	dir := t.TempDir()
	wrong := filepath.Join(dir, "wrong.yaml")
	if err := os.WriteFile(wrong, []byte("services:\n  - name: web\n    colour: red\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	good := filepath.Join(dir, "good.yaml")
	if err := os.WriteFile(good, []byte(servicesOfOne), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		says string
	}{
		{"no file", nil, "--config"},
		{"a file that is not there", []string{"--config", filepath.Join(dir, "none")}, "none"},
		{"a file that is wrong", []string{"--config", wrong}, "wrong.yaml:3"},
		{"an address that is none", []string{"--config", good, "--listen", "nowhere"}, "nowhere"},
	} {
		cmd := newControlplane()
		cmd.SetArgs(append(c.args, "--human"))
		cmd.SetOut(io.Discard)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		err := cmd.ExecuteContext(t.Context())
		if fault.CodeOf(err) != fault.Usage || fault.HintOf(err) == "" || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestControlplaneForPeople: the command says where it listens, applies changes to its file, keeps the last valid
// configuration, and ends when its context does, as after a signal.
func TestControlplaneForPeople(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mesh.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write(servicesOfOne)
	ctx, stop := context.WithCancel(t.Context())
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		cmd := newControlplane()
		cmd.SetArgs([]string{"--config", file, "--human"})
		cmd.SetOut(in)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		err := cmd.ExecuteContext(ctx)
		in.Close()
		ended <- err
	}()
	lines := bufio.NewScanner(out)
	expect := func(what string) {
		t.Helper()
		if !lines.Scan() || !strings.Contains(lines.Text(), what) {
			t.Fatalf("it says %q, want %q", lines.Text(), what)
		}
	}
	expect("listens at 127.0.0.1:")
	write(servicesOfOne + "  - colour: red\n")
	expect("stays as it was")
	write(servicesOfOne + strings.NewReplacer("web", "api", "10.0.0.1",
		"10.0.0.2").Replace(strings.TrimPrefix(servicesOfOne, "services:\n")))
	expect("2 clusters")
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestControlplaneEndsWithItsInput: as a role, the command speaks the protocol, and ends when its parent closes its
// input.
func TestControlplaneEndsWithItsInput(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mesh.yaml")
	if err := os.WriteFile(file, []byte(servicesOfOne), 0o600); err != nil {
		t.Fatal(err)
	}
	pipe := func() (*os.File, *os.File) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close(); w.Close() })
		return r, w
	}
	input, parent := pipe()
	said, output := pipe()
	stdin, stdout := os.Stdin, os.Stdout
	os.Stdin, os.Stdout = input, output
	defer func() { os.Stdin, os.Stdout = stdin, stdout }()
	cmd := newControlplane()
	cmd.SetArgs([]string{"--config", file})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(t.Context()) }()
	m, err := role.NewConn(said, io.Discard).Receive()
	var r controlplane.Ready
	if err != nil || m.Event != role.Ready || json.Unmarshal(m.Data, &r) != nil || r.Clusters != 1 || r.Listeners != 1 {
		t.Fatalf("it says %+v: %+v, %v", m, r, err)
	}
	parent.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
