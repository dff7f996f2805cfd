package microvm

import (
	"os"
	"testing"
	"time"

	"tare/internal/experiment/child"
)

// TestWhyEnded: QEMU and virtiofsd each end when the other does. The reason names the one that ended first, whichever
// end was noticed first.
func TestWhyEnded(t *testing.T) {
	tests := []struct {
		name            string
		qemu, virtiofsd string // shell commands
		kill            func(*vm, *child.Process) *child.Process
		want            string
	}{
		{name: "QEMU, and virtiofsd was seen first", qemu: "sleep 0.3", virtiofsd: "exit 0", want: "QEMU ended"},
		{name: "QEMU was killed", qemu: "exec sleep 60", virtiofsd: "exec sleep 60",
			kill: func(v *vm, _ *child.Process) *child.Process { return &v.Process }, want: "QEMU ended: killed"},
		{name: "virtiofsd was killed", qemu: "exec sleep 60", virtiofsd: "exec sleep 60",
			kill: func(_ *vm, d *child.Process) *child.Process { return d }, want: "virtiofsd ended: killed"},
		{name: "virtiofsd gave up", qemu: "exec sleep 60", virtiofsd: "echo no files >&2; exit 3",
			want: "virtiofsd ended with exit code 3: no files"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v, d := new(vm), new(child.Process)
			for p, script := range map[*child.Process]string{&v.Process: tt.qemu, d: tt.virtiofsd} {
				if err := child.Start(p, child.Command{Argv: []string{"sh", "-c", script}}, child.Options{Name: "it"}); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(p.Kill)
			}
			go endTogether(d, v)
			if tt.kill != nil {
				if err := tt.kill(v, d).Signal(os.Kill); err != nil {
					t.Fatal(err)
				}
			}
			select {
			case <-v.Ended():
			case <-time.After(time.Minute):
				t.Fatal("QEMU did not end")
			}
			if got := (&shim{vm: v, fs: d}).whyEnded().Error(); got != tt.want {
				t.Errorf("%q, not %q", got, tt.want)
			}
		})
	}
}
