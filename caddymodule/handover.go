package caddymodule

import (
	"net"
	"reflect"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// handOverListeners leaves new connections to the configuration that replaces this one, before clients are asked to
// reconnect: a connection that waits in the queue of a listener when it closes is reset. At this moment clients that keep
// their connections open none. The servers go on with the connections they have.
func (a *App) handOverListeners() {
	next := runningApp()
	if next == nil || next == a {
		return
	}
	kept := make(map[string]bool)
	for _, l := range next.listeners() {
		kept[l.Addr().String()] = true
	}
	for _, l := range a.listeners() {
		if kept[l.Addr().String()] {
			handOver(l)
		}
	}
}

// listeners are those of this configuration's HTTP servers.
func (a *App) listeners() []net.Listener {
	var all []net.Listener
	for _, server := range a.httpServers() {
		all = append(all, server.Listeners()...)
	}
	return all
}

// httpServers are the HTTP servers of this configuration, by name.
func (a *App) httpServers() map[string]*caddyhttp.Server {
	mod, err := a.ctx.AppIfConfigured("http")
	if err != nil {
		return nil
	}
	app, ok := mod.(*caddyhttp.App)
	if !ok {
		return nil
	}
	return app.Servers
}

// unwrap finds the TCP listener inside those that Caddy and its plugins wrap around it, which embed what they wrap; nil
// if there is none.
func unwrap(l net.Listener) *net.TCPListener {
	for range 16 {
		if tcp, ok := l.(*net.TCPListener); ok {
			return tcp
		}
		v := reflect.Indirect(reflect.ValueOf(l))
		if v.Kind() != reflect.Struct {
			return nil
		}
		field := v.FieldByName("Listener")
		if !field.IsValid() || !field.CanInterface() {
			return nil
		}
		inner, ok := field.Interface().(net.Listener)
		if !ok {
			return nil
		}
		l = inner
	}
	return nil
}
