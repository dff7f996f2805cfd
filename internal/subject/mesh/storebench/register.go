package storebench

import (
	"tare/internal/subject"
	_ "tare/internal/subject/mesh/store/designs" // what can be opened
)

func init() {
	subject.Register(subject.Subject{
		Name:     "store",
		Summary:  "a store of mesh configuration in BPF maps, by design: changes flushed as fast as it goes",
		Settings: Settings,
		Start: func(p subject.Place) subject.Command {
			argv := []string{p.Self, "subject", "store", "--role"}
			return subject.Command{Argv: append(argv, p.Options.Args(Settings)...), Role: true}
		},
	})
}
