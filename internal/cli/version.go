package cli

import (
	"fmt"
	"io"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"tare/internal/lib/self"
	"tare/internal/lib/usage"
	"tare/internal/scale/host/feature"
)

func init() { register(newVersion) }

// versionSchema is the schema of the JSON form.
const versionSchema = "tare.version/v1"

// versionDocument is the output of `tare version --json`.
type versionDocument struct {
	Schema   string      `json:"schema"`
	Version  string      `json:"version"`
	Commit   *string     `json:"commit"`   // nil if the build did not record it
	Modified bool        `json:"modified"` // the source differed from the commit
	Go       string      `json:"go"`
	Platform string      `json:"platform"` // in Go's form: "linux/amd64"
	Kernel   kernelNeeds `json:"kernel"`
}

// kernelNeeds lists what Tare needs of a kernel, as declared in its source. Nothing is probed.
type kernelNeeds struct {
	Least    string        `json:"least"` // oldest version of Linux
	Features []featureNeed `json:"features"`
}

type featureNeed struct {
	Name     string `json:"name"` // as in tare doctor
	Required bool   `json:"required"`
	Needs    string `json:"needs"`
	Lost     string `json:"lost"` // what is not available without it
}

func newVersion() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the version of tare, how it was built, and what it needs of a kernel",
		Long: `Show the version of tare, the commit and the Go version that it was built from, and what it needs of a kernel. Nothing
is probed: 'tare doctor' tries out what this machine has.`,
		Example: `  tare version
  tare version --json | jq -r .commit`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return promptly(cmd.Context(), func() error {
				if asJSON {
					return printJSON(cmd.OutOrStdout(), "  ", thisVersion())
				}
				return printVersion(cmd.OutOrStdout(), thisVersion())
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON document and nothing else")
	return cmd
}

func thisVersion() versionDocument {
	v := versionDocument{
		Schema: versionSchema, Version: self.Version, Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH, Kernel: kernelNeeds{Least: feature.LeastKernel},
	}
	if commit, modified := self.Commit(); commit != "" {
		v.Commit, v.Modified = &commit, modified
	}
	for _, p := range features() {
		s := p.Declared()
		v.Kernel.Features = append(v.Kernel.Features, featureNeed{s.Name, s.Required, s.Needs, s.Lost})
	}
	return v
}

func printVersion(w io.Writer, v versionDocument) error {
	commit := "not recorded"
	if v.Commit != nil {
		commit = *v.Commit
	}
	if v.Modified {
		commit += ", with changes"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "tare      %s\ncommit    %s\nbuilt by  %s for %s\n", v.Version, commit, v.Go, v.Platform)
	fmt.Fprintf(&b, "kernel    Linux %s or newer; 'tare doctor' tries out:\n\n", v.Kernel.Least)
	wide := 0
	for _, f := range v.Kernel.Features {
		wide = max(wide, len(f.Name))
	}
	for _, f := range v.Kernel.Features {
		must := "optional"
		if f.Required {
			must = "required"
		}
		fmt.Fprintf(&b, "%s  %-*s  %s\n", must, wide, f.Name, f.Needs)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
