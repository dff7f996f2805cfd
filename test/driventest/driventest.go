// Package driventest lets a test's binary act as Tare's control plane when code under test starts it in place of tare.
package driventest

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"tare/internal/experiment/role"
	"tare/internal/mesh/controlplane"
)

// ControlPlane runs the control plane and then exits if the first argument of the command line is "controlplane";
// otherwise it returns at once. Call it first in TestMain.
func ControlPlane() {
	if len(os.Args) < 2 || os.Args[1] != "controlplane" {
		return
	}
	var o controlplane.Settings
	f := pflag.NewFlagSet("controlplane", pflag.ContinueOnError)
	f.StringVar(&o.File, "config", "", "")
	f.StringVar(&o.Credentials, "credentials", "", "")
	f.StringVar(&o.Roots, "roots", "", "")
	f.StringVar(&o.Listen, "listen", "127.0.0.1:0", "")
	f.DurationVar(&o.Life, "life", 0, "")
	err := f.Parse(os.Args[2:])
	if err == nil {
		err = controlplane.Run(context.Background(), o, role.Stdio())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}
