"""Reports: sections of tables and figures, and the self-contained page that holds them."""
