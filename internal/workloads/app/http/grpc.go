package http

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// echoService is the service that experiments call. Its only method, Echo, has a google.protobuf.BytesValue as
// argument and result, so no code need be generated. For other clients, it is described in testdata/echo.proto.
var echoService = grpc.ServiceDesc{
	ServiceName: "tare.Echo",
	HandlerType: (*any)(nil),
	Methods:     []grpc.MethodDesc{{MethodName: "Echo", Handler: echo}},
	Metadata:    "echo.proto",
}

// echo implements the method for grpc-go's server.
func echo(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	answer, err := srv.(*answers).to(ctx, func() ([]byte, error) {
		var in wrapperspb.BytesValue
		err := decode(&in)
		return in.GetValue(), err
	})
	if err != nil {
		return nil, err
	}
	return wrapperspb.Bytes(answer), nil
}

// grpcServer gives grpc-go's server the interface of net/http's.
type grpcServer struct{ *grpc.Server }

func newGRPC(a *answers, secured *tls.Config) grpcServer {
	const framing = 16 // most bytes of a message besides its value
	options := []grpc.ServerOption{grpc.MaxConcurrentStreams(maxStreams), grpc.MaxRecvMsgSize(maxEcho + framing)}
	if secured != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(secured)))
	}
	s := grpc.NewServer(options...)
	s.RegisterService(&echoService, a)
	return grpcServer{s}
}

func (s grpcServer) Serve(l net.Listener) error {
	if err := s.Server.Serve(l); err != nil {
		return err
	}
	return http.ErrServerClosed
}

// Close ends calls, connections and Serve.
func (s grpcServer) Close() error {
	s.Stop()
	return nil
}
