"""The methods that PHPQ is compared with, one file each: how it learns, encodes and is searched.

`phpq.model.build_method` makes one by its name; `phpq.config.methods` is the table of them, with
the settings that suit each.
"""
