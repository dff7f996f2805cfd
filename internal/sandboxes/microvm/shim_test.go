package microvm

import (
	"os/exec"
	"testing"
	"time"
)

// TestWhyEnded: of QEMU and virtiofsd one takes the other along, and the one that ended by itself is named, whichever
// was seen first.
func TestWhyEnded(t *testing.T) {
	tests := []struct {
		name            string
		qemu, virtiofsd string // shell commands
		kill            func(*vm, *virtiofsd) *exec.Cmd
		want            string
	}{
		{name: "QEMU, and virtiofsd was seen first", qemu: "sleep 0.3", virtiofsd: "exit 0", want: "QEMU ended"},
		{name: "QEMU was killed", qemu: "exec sleep 60", virtiofsd: "exec sleep 60",
			kill: func(v *vm, _ *virtiofsd) *exec.Cmd { return v.cmd }, want: "QEMU ended: killed"},
		{name: "virtiofsd was killed", qemu: "exec sleep 60", virtiofsd: "exec sleep 60",
			kill: func(_ *vm, d *virtiofsd) *exec.Cmd { return d.cmd }, want: "virtiofsd ended: killed"},
		{name: "virtiofsd gave up", qemu: "exec sleep 60", virtiofsd: "echo no files >&2; exit 3",
			want: "virtiofsd ended with exit code 3: no files"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := &vm{cmd: exec.Command("sh", "-c", tt.qemu), ended: make(chan struct{})}
			d := &virtiofsd{cmd: exec.Command("sh", "-c", tt.virtiofsd), ended: make(chan struct{})}
			d.cmd.Stderr = &d.stderr
			for cmd, ended := range map[*exec.Cmd]chan struct{}{v.cmd: v.ended, d.cmd: d.ended} {
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				go func() {
					_ = cmd.Wait()
					close(ended)
				}()
			}
			t.Cleanup(func() {
				_, _ = v.cmd.Process.Kill(), d.cmd.Process.Kill()
				<-d.ended
			})
			go endTogether(d, v)
			if tt.kill != nil {
				if err := tt.kill(v, d).Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
			select {
			case <-v.ended:
			case <-time.After(time.Minute):
				t.Fatal("QEMU did not end")
			}
			if got := (&shim{vm: v, fs: d}).whyEnded().Error(); got != tt.want {
				t.Errorf("%q, not %q", got, tt.want)
			}
		})
	}
}
