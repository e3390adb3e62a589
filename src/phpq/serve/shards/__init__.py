"""A gallery cut into shards: each searches its rows, and the answers are put together exactly."""
