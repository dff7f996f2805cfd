package kernelmesh

import (
	"strconv"

	"tare/internal/fault"
	"tare/internal/subject"
)

func init() {
	words := []subject.Option{
		{Name: "store", Default: DefaultStore, Summary: "where the configuration is kept: design, or design:variant"},
		{Name: "fail", Default: FailOpen, Summary: "open or closed: connections pass, or are refused, while nothing was ever heard from the control plane"},
		{Name: "peer", Default: PeerService, Summary: "service or endpoint: what applications see as the peer of a connection"},
		{Name: "work", Summary: "what the process does by itself once it is told to start; empty: nothing"},
		{Name: "xds", Summary: "address of a control plane that says what the services are; empty: the services file does"},
	}
	numbers := []subject.Option{
		{Name: "steps", Default: "0", Summary: "extra steps of work in each run of the connect programs: a planted weight"},
		{Name: "sockops-steps", Default: "0", Summary: "the same in each run of the sockops program"},
		{Name: "max-services", Default: strconv.Itoa(DefaultMaxServices), Summary: "services that the maps hold"},
		{Name: "max-endpoints", Default: strconv.Itoa(DefaultMaxEndpoints), Summary: "endpoints that the maps hold"},
	}
	subject.Register(subject.Subject{
		Name:    "kernelmesh",
		Summary: "a service mesh data plane in eBPF, at connection level: service address to weighted endpoint, connections counted",
		Options: append(words, numbers...),
		Start: func(p subject.Place) (subject.Command, error) {
			argv := []string{p.Self, "subject", "kernelmesh", "--cgroup", p.CgroupDir}
			if p.Options["xds"] == "" {
				argv = append(argv, "--services", p.ServicesFile)
			}
			for _, o := range words {
				if value := p.Options[o.Name]; value != "" {
					argv = append(argv, "--"+o.Name, value) // the command checks it
				}
			}
			for _, o := range numbers {
				value := p.Options[o.Name]
				if _, err := strconv.ParseUint(value, 10, 32); err != nil {
					return subject.Command{}, fault.New(fault.Usage, "option "+o.Name, "give a whole number, 0 or more", "%q is not a number", value)
				}
				argv = append(argv, "--"+o.Name, value)
			}
			return subject.Command{Argv: argv, Role: true}, nil
		},
	})
}
