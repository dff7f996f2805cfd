package plugin

import (
	"cmp"
	"time"

	"github.com/spf13/pflag"

	"tare/internal/kube/agents"
	"tare/internal/lib/fault"
)

// temporaryNamespace is the default namespace of temporary agents. It exists in every cluster, and usually only
// administrators can access it.
const temporaryNamespace = "kube-system"

func namespaceOf(flag string) string { return cmp.Or(flag, temporaryNamespace) }

// registerAccess adds the flags for access to installed agents.
func registerAccess(f *pflag.FlagSet, a *agents.Access) {
	f.StringVar(&a.CAFile, "agents-ca", "", "`file` of certificates (PEM) to verify installed agents that have TLS")
	f.StringVar(&a.ServerName, "agents-server-name", "localhost", "name in the certificate of installed agents")
	f.StringVar(&a.User, "agents-user", "", "user of installed agents that have a password")
	f.StringVar(&a.PasswordFile, "agents-password-file", "", "`file` with that password")
}

// registerAgents adds the flags about agents.
func registerAgents(f *pflag.FlagSet, image, namespace *string) {
	f.StringVar(image, "image", "", "image of tare-agent where it is not installed; the nodes must be able to pull it")
	f.StringVar(namespace, "agents-namespace", "", "namespace in which agents are looked for (default all), and "+
		"in which temporary ones run (default "+temporaryNamespace+")")
}

// registerWithin adds --start-within.
func registerWithin(f *pflag.FlagSet, within *time.Duration) {
	f.DurationVar(within, "start-within", time.Minute, "time for agents to start")
}

// checkStart returns an error for a value of --start-within that is too short or too long.
func checkStart(within time.Duration) error {
	if within < time.Second || within > 10*time.Minute {
		return fault.New(fault.Usage, "--start-within "+within.String(), "", "it must be 1s to 10m")
	}
	return nil
}
