// Command manuals writes the files that packages contain in addition to a program: man pages and shell completions,
// which it generates from the program's command line, and changelogs.
//
//	VERSION=0.1.0 SOURCE_DATE_EPOCH=1790000000 MAINTAINER='Name <address>' go run ./release/manuals DIRECTORY
//
// It must be run at the top of the source tree. It creates a directory for each package in DIRECTORY. The same source,
// version, time and maintainer always give the same bytes.
package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"tare/internal/agent"
	"tare/internal/cli"
	"tare/internal/lib/self"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: manuals DIRECTORY")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintf(os.Stderr, "manuals: %v\n", err)
		os.Exit(1)
	}
}

// program is the program of one package.
type program struct {
	command *cobra.Command
	section string // of its man pages
}

func programs() []program { return []program{{cli.Command(), "1"}, {agent.Command(), "8"}} }

// write writes the files of all packages below dir.
func write(dir string) error {
	version := cmp.Or(os.Getenv("VERSION"), self.Version)
	epoch, err := strconv.ParseInt(cmp.Or(os.Getenv("SOURCE_DATE_EPOCH"), "0"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	date := time.Unix(epoch, 0).UTC()
	for _, p := range programs() {
		dir := filepath.Join(dir, p.command.Name())
		err := errors.Join(
			writePages(filepath.Join(dir, "man"), p, version, date),
			writeCompletions(filepath.Join(dir, "completions"), p.command),
			writeChangelogs(dir, p.command.Name(), version, date),
		)
		if err != nil {
			return fmt.Errorf("writing the manuals of %s: %w", p.command.Name(), err)
		}
	}
	return nil
}

// writePages writes a compressed man page for each command.
func writePages(dir string, p program, version string, date time.Time) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	header := &doc.GenManHeader{Section: p.section, Date: &date, Source: "Tare " + version, Manual: "Tare"}
	p.command.DisableAutoGenTag = true
	escapeAll(p.command)
	if err := doc.GenManTree(p.command, header, dir); err != nil {
		return err
	}
	pages, err := filepath.Glob(filepath.Join(dir, "*."+p.section))
	if err != nil {
		return err
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			return err
		}
		if err := errors.Join(writeCompressed(page+".gz", text), os.Remove(page)); err != nil {
			return err
		}
	}
	return nil
}

// writeCompletions writes the completions for each shell, under the names by which the shells find them.
func writeCompletions(dir string, command *cobra.Command) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	name := command.Name()
	var bash, zsh, fish bytes.Buffer
	return errors.Join(
		command.GenBashCompletionV2(&bash, true),
		command.GenZshCompletion(&zsh),
		command.GenFishCompletion(&fish, true),
		os.WriteFile(filepath.Join(dir, name), bash.Bytes(), 0o644),
		os.WriteFile(filepath.Join(dir, "_"+name), zsh.Bytes(), 0o644),
		os.WriteFile(filepath.Join(dir, name+".fish"), fish.Bytes(), 0o644),
	)
}

// writeChangelogs writes CHANGELOG.md, compressed, and the changelog that Debian's policy requires in addition.
func writeChangelogs(dir, name, version string, date time.Time) error {
	changes, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		return err
	}
	debian := fmt.Appendf(nil,
		"%s (%s-1) unstable; urgency=medium\n\n  * Version %s: see changelog.gz.\n\n -- %s  %s\n",
		name, strings.Replace(version, "-", "~", 1), version, os.Getenv("MAINTAINER"), date.Format(time.RFC1123Z))
	return errors.Join(
		writeCompressed(filepath.Join(dir, "changelog.gz"), changes),
		writeCompressed(filepath.Join(dir, "changelog.Debian.gz"), debian),
	)
}

// writeCompressed writes a compressed file as `gzip -9n` does: without a name and a time, which would differ between
// builds.
func writeCompressed(path string, text []byte) error {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return err
	}
	_, err = w.Write(text)
	if err := errors.Join(err, w.Close()); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

// escapeAll escapes the texts of a command and of all its subcommands. Package doc reads these texts as Markdown, and
// man pages should show them as the help of the commands does.
func escapeAll(c *cobra.Command) {
	c.Short, c.Long = escape(c.Short), markdown(cmp.Or(c.Long, c.Short))
	for _, flags := range []*pflag.FlagSet{c.Flags(), c.PersistentFlags()} {
		flags.VisitAll(func(f *pflag.Flag) { f.Usage, f.DefValue = escape(f.Usage), escape(f.DefValue) })
	}
	for _, sub := range c.Commands() {
		escapeAll(sub)
	}
}

// special matches the characters that have a meaning in Markdown within a line.
var special = regexp.MustCompile("[\\\\`*_{}\\[\\]<>~|#]")

func escape(text string) string { return special.ReplaceAllString(text, `\$0`) }

// markdown escapes a text of several paragraphs. A paragraph with indented lines is a table or a list, and becomes a
// code block to keep its lines as they are.
func markdown(text string) string {
	paragraphs := strings.Split(strings.TrimSpace(text), "\n\n")
	for i, p := range paragraphs {
		if strings.Contains("\n"+p, "\n ") {
			paragraphs[i] = "```\n" + p + "\n```"
		} else {
			paragraphs[i] = escape(p)
		}
	}
	return strings.Join(paragraphs, "\n\n")
}
