"""The LOOK door: views of a spool, folded from its journals; nothing here changes a spool."""
