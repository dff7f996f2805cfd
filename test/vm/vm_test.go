package vm

import (
	"strings"
	"testing"
)

func TestUnframe(t *testing.T) {
	for _, c := range []struct {
		name, port, output string
		code               int
		ok                 bool
	}{
		{"empty output", "tare-vm: begin\ntare-vm: end 0\n", "", 0, true},
		{"exit code", "tare-vm: begin\na\nb\ntare-vm: end 127\n", "a\nb\n", 127, true},
		{"no last newline", "tare-vm: begin\n{}tare-vm: end 3\n", "{}", 3, true},
		{"output that looks like the frame", "tare-vm: begin\ntare-vm: end 1\ntare-vm: end 0\n", "tare-vm: end 1\n", 0, true},
		{"panicked", "tare-vm: begin\nhalf a li", "", 0, false},
		{"end cut short", "tare-vm: begin\ntare-vm: end 1", "", 0, false},
		{"never began", "", "", 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			output, code, err := unframe(c.port)
			if (err == nil) != c.ok || output != c.output || code != c.code {
				t.Errorf("got %q, %d, %v", output, code, err)
			}
		})
	}
}

const bootScript = `uname -r
cat /sys/devices/system/clocksource/clocksource0/current_clocksource
nproc
ls /sys/kernel/btf/vmlinux
mount | grep -c -e ' /sys/fs/bpf type bpf ' -e ' /sys/kernel/tracing type tracefs '
grep -o tare_marker=7 /proc/cmdline
/opt/hello
ping -c 1 -q 127.0.0.1 >&2
tare --help >&2
printf 'no newline'
exit 5
`

func checkBoot(t *testing.T, r Result) {
	kernel, rest, _ := strings.Cut(r.Output, "\n")
	clock, rest, _ := strings.Cut(rest, "\n")
	const want = "2\n/sys/kernel/btf/vmlinux\n2\ntare_marker=7\nhello\nno newline"
	if rest != want || r.ExitCode != 5 {
		t.Errorf("got exit code %d and\n%s\nwant 5 and\n%s", r.ExitCode, rest, want)
	}
	for _, said := range []string{"packets transmitted", "Tare weighs"} {
		if !strings.Contains(r.Console, said) {
			t.Errorf("the console lacks %q of the script's standard error:\n%s", said, r.Console)
		}
	}
	t.Logf("kernel %s, clock %s, %s from start to power-off", kernel, clock, r.Took)
}
