"""Pages of one look: tables, figures and notes in, an HTML file or a Markdown text out.

`evaluate`, `demo` and `reproduce` say what their pages show; how it looks is decided here alone.
"""
