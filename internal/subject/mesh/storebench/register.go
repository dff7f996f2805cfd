package storebench

import (
	"strconv"

	"tare/internal/subject"
	_ "tare/internal/subject/mesh/store/designs" // what can be opened
)

// DefaultStore is the design where none is given.
const DefaultStore = "snapshot"

func init() {
	options := []subject.Option{
		{Name: "store", Default: DefaultStore, Summary: "design, or design:variant"},
		{Name: "resource", Default: Cluster, Summary: "what is flushed: cluster (10 localities of one endpoint, circuit breakers) or listener (5 filter chains)"},
		{Name: "operation", Default: Replace, Summary: "insert, replace or delete; lookup: no change, but questions by a program in the kernel"},
		{Name: "from", Default: Struct, Summary: "struct: changes come decoded; bytes: as xDS resources on the wire"},
		{Name: "services", Default: "0", Summary: "services in the store beside what is flushed"},
		{Name: "endpoints", Default: strconv.Itoa(DefaultEndpoints), Summary: "of each of these services"},
		{Name: "max-clusters", Default: "0", Summary: "clusters that the store is made for; 0: its own choice"},
		{Name: "max-listeners", Default: "0", Summary: "listeners, likewise"},
		{Name: "max-endpoints", Default: "0", Summary: "endpoints of all clusters, likewise"},
	}
	subject.Register(subject.Subject{
		Name:    "store",
		Summary: "a store of mesh configuration in BPF maps, by design: changes flushed as fast as it goes",
		Options: options,
		Start: func(p subject.Place) (subject.Command, error) {
			argv := []string{p.Self, "subject", "store", "--role"}
			for _, o := range options {
				argv = append(argv, "--"+o.Name+"="+p.Options[o.Name]) // the command checks the values
			}
			return subject.Command{Argv: argv, Role: true}, nil
		},
	})
}
