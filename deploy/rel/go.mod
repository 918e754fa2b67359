module github.com/queengate/queengate/deploy/rel

go 1.26.0

require (
	github.com/go-json-experiment/json v1.27.2
	github.com/google/go-cmp v0.7.0
	github.com/klauspost/compress v1.20.4
)

require github.com/anishathalye/porcupine v1.3.1
