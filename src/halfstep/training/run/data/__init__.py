"""The data of a run: `batches` draws them pass after pass and knows the position, `generators` and
`stream` hold its random states, `checksum` knows them by content, `windows` puts them together."""
