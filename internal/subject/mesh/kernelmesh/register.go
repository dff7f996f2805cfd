package kernelmesh

import "tare/internal/subject"

func init() {
	subject.Register(subject.Subject{
		Name:     "kernelmesh",
		Summary:  "a service mesh data plane in eBPF, at connection level: service address to weighted endpoint, connections counted",
		Settings: Settings,
		Start: func(p subject.Place) subject.Command {
			argv := []string{p.Self, "subject", "kernelmesh", "--cgroup=" + p.CgroupDir}
			if p.XDS != "" {
				argv = append(argv, "--xds="+p.XDS)
			} else {
				argv = append(argv, "--services="+p.ServicesFile)
			}
			return subject.Command{Argv: append(argv, p.Options.Args(Settings)...), Role: true}
		},
	})
}
