package plugin

import (
	"cmp"

	"github.com/spf13/pflag"
)

// temporaryNamespace is where temporary agents run: it exists in every cluster, and only administrators come in.
const temporaryNamespace = "kube-system"

func namespaceOf(flag string) string { return cmp.Or(flag, temporaryNamespace) }

// registerAgents adds the flags about agents.
func registerAgents(f *pflag.FlagSet, image, namespace *string) {
	f.StringVar(image, "image", "", "image of tare-agent where it is not installed; the nodes must be able to pull it")
	f.StringVar(namespace, "agents-namespace", "", "namespace in which agents are looked for (default all), and "+
		"in which temporary ones run (default "+temporaryNamespace+")")
}
