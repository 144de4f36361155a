"""Logs as people have them: CSV, Kaggle's layouts, Parquet, folders of pictures."""
