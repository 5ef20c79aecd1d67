// A web server that says which instance it is: the image of `make demo-containers`.
package main

import (
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	log.SetFlags(0)
	log.SetOutput(os.Stdout)
	name, _ := os.Hostname() // the instance
	http.HandleFunc("/", func(answer http.ResponseWriter, request *http.Request) {
		log.Printf("%s %s", request.Method, request.URL.Path)
		fmt.Fprintf(answer, "hello from %s\n", name)
	})
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	go func() { <-stop; os.Exit(0) }()
	log.Print("listening on :8080")
	log.Fatal(http.ListenAndServe(":8080", nil))
}
