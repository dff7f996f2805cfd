package services

import "tare/internal/experiment/kind"

// Protocol is what the application serves: xDS to data planes, and changes to the loads that ask for them.
const Protocol = "mesh"

func init() { kind.Register(kind.Application, guest{}) }

// guest is the application as the engine knows it.
type guest struct{}

// About says what it is.
func (guest) About() kind.About {
	return kind.About{
		Name: "mesh",
		Summary: "a whole mesh: a control plane (xDS) with services made up, which changes their endpoints " +
			"when a load of kind `push` asks for it",
		Settings: Settings,
		Protocol: Protocol,
	}
}

// Command starts it at a free port.
func (guest) Command(kind.Site) []string {
	return []string{"app", "mesh", "--role", "--listen=127.0.0.1:0"}
}
