//! What must hold for any bytes whatever: shared by the fuzz targets and by a seeded run among the tests.
