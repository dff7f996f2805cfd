package kernelmesh

import (
	"strconv"

	"tare/internal/fault"
	"tare/internal/subject"
)

func init() {
	subject.Register(subject.Subject{
		Name:    "kernelmesh",
		Summary: "a service mesh data plane in eBPF, at connection level: service address to weighted endpoint, connections counted",
		Options: []subject.Option{
			{Name: "steps", Default: "0", Summary: "extra steps of work in each run of the connect programs: a planted weight"},
			{Name: "sockops-steps", Default: "0", Summary: "the same in each run of the sockops program"},
			{Name: "max-services", Default: strconv.Itoa(DefaultMaxServices), Summary: "services that the maps hold"},
			{Name: "max-endpoints", Default: strconv.Itoa(DefaultMaxEndpoints), Summary: "endpoints that the maps hold"},
		},
		Start: func(p subject.Place) (subject.Command, error) {
			argv := []string{p.Self, "subject", "kernelmesh", "--services", p.ServicesFile, "--cgroup", p.CgroupDir}
			for _, name := range []string{"steps", "sockops-steps", "max-services", "max-endpoints"} {
				value := p.Options[name]
				if _, err := strconv.ParseUint(value, 10, 32); err != nil {
					return subject.Command{}, fault.New(fault.Usage, "option "+name, "give a whole number, 0 or more", "%q is not a number", value)
				}
				argv = append(argv, "--"+name, value)
			}
			return subject.Command{Argv: argv, Role: true}, nil
		},
	})
}
