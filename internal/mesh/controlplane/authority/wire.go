package authority

import (
	_ "embed"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	_ "google.golang.org/protobuf/types/known/structpb" // registers a file that the description imports
)

// The wire format of Istio's certificate service (istio.io/api, security/v1alpha1/ca.proto). Two messages with five
// fields do not justify a dependency on that module.
const (
	serviceName = "istio.v1.auth.IstioCertificateService"
	callName    = "CreateCertificate"
	methodName  = "/" + serviceName + "/" + callName
)

// request holds the fields of an IstioCertificateRequest.
type request struct {
	csr          string // PEM
	subject      string // optional: the requested identity
	seconds      int64  // optional: the requested life
	impersonated string // in the metadata: another requested identity
}

// impersonate is the metadata key with which Istio's node proxies request identities of their workloads.
const impersonate = "ImpersonatedIdentity"

//go:embed ca.txtpb
var description []byte

var messages = sync.OnceValue(func() protoreflect.MessageDescriptors {
	var d descriptorpb.FileDescriptorProto
	err := prototext.Unmarshal(description, &d)
	var file protoreflect.FileDescriptor
	if err == nil {
		file, err = protodesc.NewFile(&d, protoregistry.GlobalFiles)
	}
	if err != nil {
		panic(err) // the embedded description is wrong, which every test would show
	}
	return file.Messages()
})

func newRequest() *dynamicpb.Message  { return dynamicpb.NewMessage(messages().Get(0)) }
func newResponse() *dynamicpb.Message { return dynamicpb.NewMessage(messages().Get(1)) }

func get(m *dynamicpb.Message, name protoreflect.Name) protoreflect.Value {
	return m.Get(m.Descriptor().Fields().ByName(name))
}

// maxMessage is the maximum length of a message in bytes. Decoded, its metadata could take a hundred times as much.
const maxMessage = 64 << 10

// readMessage reads an encoded IstioCertificateRequest.
func readMessage(b []byte) (request, error) {
	if len(b) > maxMessage {
		return request{}, fmt.Errorf("the message has %d bytes, more than %d", len(b), maxMessage)
	}
	m := newRequest()
	if proto.Unmarshal(b, m) != nil {
		return request{}, errors.New("the message is not one that asks for a certificate")
	}
	r := request{
		csr: get(m, "csr").String(), subject: get(m, "subject_id").String(), seconds: get(m, "validity_duration").Int(),
	}
	metadata := get(m, "metadata").Message()
	fields := metadata.Get(metadata.Descriptor().Fields().ByName("fields")).Map()
	if v := fields.Get(protoreflect.ValueOfString(impersonate).MapKey()); v.IsValid() {
		value := v.Message()
		r.impersonated = value.Get(value.Descriptor().Fields().ByName("string_value")).String()
	}
	return r, nil
}

// requestMessage returns a request for a certificate whose life the control plane chooses.
func requestMessage(csr string) proto.Message {
	m := newRequest()
	m.Set(m.Descriptor().Fields().ByName("csr"), protoreflect.ValueOfString(csr))
	return m
}

func responseMessage(chain ...[]byte) proto.Message {
	m := newResponse()
	list := m.Mutable(m.Descriptor().Fields().ByName("cert_chain")).List()
	for _, text := range chain {
		list.Append(protoreflect.ValueOfString(string(text)))
	}
	return m
}

// readResponse returns the certificate's chain, which is all elements but the last, and the roots, which are the last
// element.
func readResponse(m *dynamicpb.Message) (chain, roots []byte, err error) {
	list := get(m, "cert_chain").List()
	if list.Len() < 2 {
		return nil, nil, fmt.Errorf("the answer has %d certificates, and needs one and its root", list.Len())
	}
	for i := range list.Len() - 1 {
		chain = append(chain, list.Get(i).String()...)
	}
	return chain, []byte(list.Get(list.Len() - 1).String()), nil
}
