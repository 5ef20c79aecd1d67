// The program in the image that tests run: each mode is something that a container may do.
package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

func main() {
	arguments := append(os.Args[1:], "", "", "")
	switch mode := arguments[0]; mode {
	case "serve":
		serve(arguments[1])
	case "count": // count LINES EVERY: numbered lines, then it goes on without a word until it is stopped
		go func() {
			wait()
			fmt.Println("stopped")
			os.Exit(0)
		}()
		count(number(arguments[1], 10), pause(arguments[2]))
		select {}
	case "exit": // exit CODE [AFTER]
		time.Sleep(pause(arguments[2]))
		fmt.Fprintf(os.Stderr, "exiting with %d\n", number(arguments[1], 0))
		os.Exit(number(arguments[1], 0))
	case "allocate": // allocate MEGABYTES
		allocate(number(arguments[1], 64))
		wait()
	case "flood": // flood [WIDTH]: lines without end, as fast as they are taken
		flood(number(arguments[1], 80))
	case "hostile": // bytes that are no text, escape sequences, and a line of 100 kB
		os.Stdout.Write([]byte("\xff\xfe\x00binary\x80\n\x1b[2J\x1b]0;title\x07escape\n"))
		fmt.Println(strings.Repeat("x", 100_000))
		wait()
	case "fork": // starts itself twice, and so do those
		fork()
	case "cat":
		io.Copy(os.Stdout, os.Stdin)
	case "size": // how many bytes stdin had
		size, _ := io.Copy(io.Discard, os.Stdin)
		fmt.Println(size)
	case "produce": // produce BYTES
		produce(number(arguments[1], 1))
	case "both": // a line on each stream
		fmt.Println("to stdout")
		fmt.Fprintln(os.Stderr, "to stderr")
	case "echo":
		fmt.Println(strings.Join(os.Args[2:], " "))
	case "environment":
		fmt.Println(strings.Join(os.Environ(), "\n"))
	case "terminal": // the size of the terminal, now and at every change
		terminal()
	case "sleep":
		wait()
	default:
		fmt.Fprintf(os.Stderr, "no mode %q\n", mode)
		os.Exit(64)
	}
}

func number(text string, other int) int {
	if value, err := strconv.Atoi(text); err == nil {
		return value
	}
	return other
}

func pause(text string) time.Duration {
	value, _ := time.ParseDuration(text)
	return value
}

// The first process of a container ignores the signals that it does not handle.
func wait() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	<-signals
}

func serve(port string) {
	if port == "" {
		port = "8080"
	}
	name, _ := os.Hostname()
	version := os.Getenv("VERSION")
	http.HandleFunc("/", func(response http.ResponseWriter, request *http.Request) {
		fmt.Fprintf(response, "hello from %s%s\n", name, version)
	})
	go func() { fmt.Fprintln(os.Stderr, http.ListenAndServe(":"+port, nil)); os.Exit(1) }()
	fmt.Printf("listening on :%s\n", port)
	if every := pause(os.Getenv("EVERY")); every > 0 {
		countUntilStopped(every)
	}
	wait()
}

// Ends with a line that says how many there were, so that a reader knows that it has all of them.
func countUntilStopped(every time.Duration) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	for line := 1; ; line++ {
		fmt.Printf("line %d\n", line)
		select {
		case <-signals:
			fmt.Printf("stopped after %d\n", line)
			os.Exit(0)
		case <-time.After(every):
		}
	}
}

func count(lines int, every time.Duration) {
	for line := 1; line <= lines; line++ {
		fmt.Printf("line %d\n", line)
		time.Sleep(every)
	}
}

func allocate(megabytes int) {
	held := make([][]byte, 0, megabytes)
	for range make([]struct{}, megabytes) {
		block := make([]byte, 1<<20)
		for at := 0; at < len(block); at += 4096 {
			block[at] = 1
		}
		held = append(held, block)
	}
	fmt.Printf("holds %d MB\n", len(held))
}

func flood(width int) {
	output := bufio.NewWriterSize(os.Stdout, 1<<16)
	text := strings.Repeat("f", width)
	for line := 1; ; line++ {
		fmt.Fprintf(output, "flood %d %s\n", line, text)
	}
}

func produce(size int) {
	block := []byte(strings.Repeat("0123456789abcde\n", 4096))
	for size > 0 {
		written, err := os.Stdout.Write(block[:min(size, len(block))])
		if err != nil {
			os.Exit(1)
		}
		size -= written
	}
}

func fork() {
	for range make([]struct{}, 2) {
		child := exec.Command("/proc/self/exe", "fork")
		if err := child.Start(); err != nil {
			fmt.Fprintln(os.Stderr, "no more processes")
		}
	}
	wait()
}

func terminal() {
	changes := make(chan os.Signal, 8)
	signal.Notify(changes, syscall.SIGWINCH)
	lines := make(chan string)
	go func() {
		input := bufio.NewScanner(os.Stdin)
		for input.Scan() {
			lines <- input.Text()
		}
		close(lines)
	}()
	report()
	for {
		select {
		case <-changes:
			report()
		case line, open := <-lines:
			if !open || line == "end" {
				return
			}
		}
	}
}

func report() {
	var size struct{ rows, columns, x, y uint16 }
	syscall.Syscall(syscall.SYS_IOCTL, 0, syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&size)))
	fmt.Printf("%dx%d\n", size.columns, size.rows)
}
