package process

import (
	"context"
	"strings"
	"time"

	"tare/internal/experiment/child"
	"tare/internal/lib/text"
)

// versionTime limits the time that a program may take to print its version.
const versionTime = 10 * time.Second

// FirstLine returns the first line that is not blank in a program's output, such as its version. It is clipped, has
// only printable characters, and is empty if the program prints nothing within ten seconds.
func FirstLine(ctx context.Context, argv ...string) string {
	for line := range strings.Lines(Printed(ctx, argv...)) {
		if line = strings.TrimSpace(line); line != "" {
			const most = 120
			return text.Plain(line[:min(len(line), most)])
		}
	}
	return ""
}

// VersionOf runs a command that prints a version, and returns the first line of its output; empty if there is none.
func VersionOf(ctx context.Context, line string) string {
	argv, err := Words(line)
	if err != nil {
		return ""
	}
	return FirstLine(ctx, argv...)
}

// Printed returns what a program prints on both outputs, at most 64 KiB, whatever its exit status. It is killed after
// ten seconds.
func Printed(ctx context.Context, argv ...string) string {
	if len(argv) == 0 {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, versionTime)
	defer cancel()
	var out bounded
	c := child.Command{Argv: argv, Stdout: &out, Stderr: &out}
	// Some programs print their version and exit with 1.
	_ = child.Run(ctx, c, child.Options{Name: argv[0], Linger: time.Second})
	return string(out)
}

// bounded is a writer that keeps the first 64 KiB.
type bounded []byte

// Write accepts all bytes, and keeps as many as there is room for.
func (b *bounded) Write(p []byte) (int, error) {
	const most = 64 << 10
	*b = append(*b, p[:min(len(p), most-len(*b))]...)
	return len(p), nil
}
